"""Java's HTTP client, as it is by default: with each request it offers HTTP/2. It is answered in HTTP/1.1.

These are the bytes of java.net.http.HttpClient of Java 17. The first request of a connection comes in two parts.
"""

import asyncio

import pytest

from protocol.messages_gateway import Role
from testkit.fake_worker import PATIENCE_S
from tests.gateway.conftest import Setting

pytestmark = pytest.mark.slow

HEAD = (  # without the line that says where the body ends
    b"POST /v1/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: 127.0.0.1:8000\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\nUpgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\nContent-Type: application/json\r\n\r\n"
)
BODY = b'{"model": "story", "prompt": "Once upon a time", "max_tokens": 8}'
GET = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
LAST = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


def head_with(line: bytes) -> bytes:
    """The head with one more line."""
    return HEAD.replace(b"Host: ", line + b"\r\nHost: ")


async def answer_to(setting: Setting, *parts: bytes) -> bytes:
    """What the gateway answers until it closes. It reads each part before the next one comes."""
    host, port = setting.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await setting.client.get("/")  # answered by the same loop, after it has read the part
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("in_two", [False, True])
@pytest.mark.parametrize("in_chunks", [False, True])
async def test_its_body_is_read_and_what_follows_is_answered(setting: Setting, in_chunks: bool, in_two: bool) -> None:
    await setting.add(Role.UNIFIED)
    head = head_with(b"Transfer-encoding: chunked" if in_chunks else b"Content-Length: %d" % len(BODY))
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) if in_chunks else BODY
    parts = (head, body + LAST) if in_two else (head + body + LAST,)

    first, second, third = (await answer_to(setting, *parts)).split(b"HTTP/1.1 200 OK\r\n")

    assert first == b"" and b'"completion_tokens":8' in second and b'{"object":"list"' in third
    [worker] = setting.workers
    assert len(worker.assigned) == 1


async def test_a_request_in_its_body_is_not_answered(setting: Setting) -> None:
    """A proxy in front passes on one request and waits for one answer. A second one would go to its next client."""
    head = head_with(b"Content-Length: %d" % len(GET))
    answer = await answer_to(setting, head, GET + LAST)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"the body is not valid JSON" in answer
    assert answer.count(b"HTTP/1.1 ") == 2 and answer.count(b"HTTP/1.1 200 OK") == 1
