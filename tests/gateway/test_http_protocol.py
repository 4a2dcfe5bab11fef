"""Bounds on headers, over a plain socket."""

import asyncio
import json

import pytest

from gateway.http_protocol import MAX_HEADER_BYTES, MAX_HEADERS, BoundedHttp
from tests.gateway.conftest import Setting


async def exchange(setting: Setting, *parts: bytes) -> bytes:
    """What the gateway answers to raw bytes, until it closes."""
    host, port = setting.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def error_of(answer: bytes, status: int) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert b"\r\nx-request-id: req-" in head
    return str(json.loads(body)["error"]["message"])


async def test_too_many_headers(setting: Setting) -> None:
    headers = b"".join(b"a%d: b\r\n" % number for number in range(MAX_HEADERS + 1))
    answer = await exchange(setting, b"GET / HTTP/1.1\r\n" + headers + b"\r\n")
    assert str(MAX_HEADERS) in error_of(answer, 431)


async def test_headers_that_are_too_long(setting: Setting) -> None:
    answer = await exchange(setting, b"GET / HTTP/1.1\r\na: ", b"b" * (MAX_HEADER_BYTES + 1))
    assert str(MAX_HEADER_BYTES) in error_of(answer, 431)


async def test_headers_that_do_not_come(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "header_deadline_s", 0.05)
    assert "0.05 s" in error_of(await exchange(setting, b"GET / HTTP/1.1\r\na: b\r\n"), 408)
    assert "0.05 s" in error_of(await exchange(setting), 408)


async def test_a_body_that_does_not_come(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http_app.BODY_DEADLINE_S", 0.05)
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n{"
    assert "0.05 s" in error_of(await exchange(setting, head), 408)


async def test_what_is_not_http(setting: Setting) -> None:
    assert "Invalid" in error_of(await exchange(setting, b"\x16\x03\x01 nonsense\r\n\r\n"), 400)


async def test_a_long_body_is_no_header(setting: Setting) -> None:
    body = b'{"prompt": "' + b"x" * (2 * MAX_HEADER_BYTES) + b'"}'
    head = b"POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert "context length" in error_of(await exchange(setting, head + body[:1000], body[1000:]), 400)


@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_a_body_is_no_header_when_their_end_comes_in_two_pieces(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr("gateway.http_protocol.MAX_HEADER_BYTES", 100)
    body = b'{"prompt": "' + b"x" * 1000 + b'"}'
    head = b"POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    host, port = setting.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head[:-cut])
    await setting.client.get("/")  # the gateway has read the first piece meanwhile
    writer.write(head[-cut:] + body)
    assert "context length" in error_of(await reader.read(), 400)
    writer.close()


async def test_requests_on_one_connection(setting: Setting) -> None:
    get = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
    last = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    assert (await exchange(setting, get, get, last)).count(b"HTTP/1.1 200 OK") == 3
