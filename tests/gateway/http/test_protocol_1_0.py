"""Clients of HTTP/1.0, such as a proxy with its defaults: they know neither chunks nor connections that stay."""

import json

import pytest

from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, exchange

BODY = json.dumps({"prompt": [1, 2], "max_tokens": 4, "stream": True}).encode()


async def said(setting: Setting, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of what comes until the gateway closes the connection."""
    head, _, body = (await exchange(setting, request)).partition(b"\r\n\r\n")
    return head.lower(), body


def post(version: bytes, body: bytes = BODY, more: bytes = b"") -> bytes:
    head = b"POST /v1/completions HTTP/%s\r\nhost: a\r\ncontent-length: %d\r\n%s\r\n" % (version, len(body), more)
    return head + body


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n", b"connection: keep-alive\r\n"])
async def test_a_stream_has_no_chunks_and_ends_with_the_connection(setting: Setting, more: bytes) -> None:
    await setting.add_pair(Behaviour(pause_s=0.002))
    head, body = await said(setting, post(b"1.0", more=more))
    assert b"transfer-encoding" not in head and b"connection: close" in head
    lines = [line for line in body.split(b"\n\n") if line]
    assert all(line.startswith(b"data: ") for line in lines) and lines[-1] == b"data: [DONE]"
    assert len(lines) == 5
    _, chunked = await said(setting, post(b"1.1", more=b"connection: close\r\n"))
    assert chunked.endswith(b"\r\n0\r\n\r\n")


async def test_a_whole_answer_has_its_length(setting: Setting) -> None:
    await setting.add_pair()
    head, body = await said(setting, post(b"1.0", b'{"prompt": [1], "max_tokens": 2}'))
    assert b"content-length: %d" % len(body) in head and json.loads(body)["usage"]["completion_tokens"] == 2
    head, body = await said(setting, b"HEAD /health HTTP/1.0\r\n\r\n")
    assert head.startswith(b"http/1.1 200") and b"content-length: 15" in head and body == b""
    head, body = await said(setting, post(b"1.0", b"{"))
    assert head.startswith(b"http/1.1 400") and json.loads(body)["error"]["code"] == "bad_request"
