"""Bounds on what a connection may send, over a plain socket: bytes, headers, time, connections."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.http.protocol import FRAMING_BYTES, MAX_PIPELINED
from protocol.messages_gateway import Role
from runtime.settings import HttpLimits
from testkit.fake_worker import PATIENCE_S, Behaviour
from tests.gateway.conftest import Setting, connect, exchange, running, wait_until

pytestmark = pytest.mark.slow

SMALL = HttpLimits(max_body_bytes=2000, max_header_bytes=1000, max_headers=20, max_connections=8)
HASTY = HttpLimits(header_timeout_s=0.3, body_timeout_s=0.3, keep_alive_timeout_s=0.3)
GET = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
LAST = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n"


@pytest.fixture
async def small(folder: Path) -> AsyncIterator[Setting]:
    """A gateway with tight limits on sizes."""
    async with running(folder, limits=SMALL) as found:
        yield found


@pytest.fixture
async def hasty(folder: Path) -> AsyncIterator[Setting]:
    """A gateway with tight limits on time."""
    async with running(folder, limits=HASTY) as found:
        yield found


def error_of(answer: bytes, status: int) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert b"\r\nx-request-id: req-" in head and b"\r\nconnection: close" in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    return str(json.loads(body)["error"]["message"])


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


# ---- sizes ----


async def test_requests_that_are_sent_without_waiting_are_bounded(small: Setting) -> None:
    """Each takes far more memory than the twenty bytes that ask for it."""
    answer = await exchange(small, GET * (MAX_PIPELINED + 200))
    assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b"HTTP/1.1 ") == 1 + MAX_PIPELINED
    assert answer.count(b"connection: close") == 1
    within = await exchange(small, GET * MAX_PIPELINED + LAST)
    assert within.count(b"HTTP/1.1 200 OK") == 1 + MAX_PIPELINED


async def test_headers_that_are_too_long_on_a_connection_in_use(small: Setting) -> None:
    reader, writer = await connect(small)
    writer.write(GET)
    await reader.readuntil(b"]}")
    writer.write(b"GET / HTTP/1.1\r\n")
    writer.write(b"a: " + b"b" * 1001)
    assert "1000 bytes" in error_of(await reader.read(), 431)
    writer.close()


@pytest.mark.parametrize("path", [b"/v1/completions", b"/nowhere", b"/flush_cache"])
async def test_a_body_without_end_is_cut(small: Setting, path: bytes) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    reader, writer = await connect(small)
    writer.write(head)
    reading = asyncio.create_task(reader.read())
    sent = 0
    while not reading.done():
        assert sent < 64 * 1024 * 1024
        writer.write(chunk(b"x" * 1000))
        sent += 1000
        await asyncio.sleep(0)
    answer = await reading
    writer.close()
    assert answer.count(b"HTTP/1.1 ") == 1
    if path == b"/v1/completions":
        assert "longer than that, expected at most 2000 bytes" in error_of(answer, 413)
    else:  # what does not wait for the body may have answered before
        assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 404", b"HTTP/1.1 200"))
    assert (await small.client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("start", [b"1;", b"0\r\na: "])
async def test_chunks_with_endless_extensions_or_trailers(small: Setting, start: bytes) -> None:
    reader, writer = await connect(small)
    writer.write(POST + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"{") + start)
    await small.client.get("/")  # the gateway has read this piece meanwhile
    writer.write(b"x" * (FRAMING_BYTES + 1))
    assert str(FRAMING_BYTES) in error_of(await reader.read(), 431)
    writer.close()


async def test_a_body_in_tiny_chunks_is_no_framing(setting: Setting) -> None:
    body = b'{"prompt": "x", "n": 0, "user": "' + b"x" * 30_000 + b'"}'
    pieces = b"".join(chunk(bytes([each])) for each in body) + b"0\r\nn: 1\r\n\r\n"
    assert len(pieces) > 2 * FRAMING_BYTES
    reader, writer = await connect(setting)
    writer.write(POST + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n")
    for start in range(0, len(pieces), 32_768):
        await setting.client.get("/")  # the gateway has read what came before meanwhile
        writer.write(pieces[start : start + 32_768])
    assert "n: got 0" in error_of(await reader.read(), 400)
    writer.close()


@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_a_body_is_no_header_when_their_end_comes_in_two_pieces(small: Setting, cut: int) -> None:
    body = b'{"n": 0, "prompt": "' + b"x" * 1500 + b'"}'
    head = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    reader, writer = await connect(small)
    writer.write(head[:-cut])
    await small.client.get("/")  # the gateway has read the first piece meanwhile
    writer.write(head[-cut:] + body)
    assert "n: got 0" in error_of(await reader.read(), 400)
    writer.close()


async def test_one_connection_too_many(small: Setting) -> None:
    await small.client.get("/")  # one
    others = [await connect(small) for _ in range(7)]
    for _, writer in others:
        writer.write(b"GET")
    refused = await exchange(small)
    assert b"\r\nretry-after: " in refused and "8 connections" in error_of(refused, 503)
    assert (await small.client.get("/")).status_code == 200
    others[0][1].close()
    for _ in range(100):
        if b" 200 OK" in await exchange(small, LAST):
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError("no room although a connection is closed")
    for _, writer in others:
        writer.close()


async def test_whoever_was_refused_takes_nobody_s_place(small: Setting) -> None:
    """It is kept for a moment, so that it can read why."""
    kept = [await connect(small) for _ in range(8)]
    for _, writer in kept:
        writer.write(b"GET")
    refused = [await connect(small) for _ in range(5)]
    for reader, _ in refused:
        assert b"8 connections" in await reader.read()
    held = small.gateway._server.server_state.connections
    assert len(held) == 8
    kept[0][1].close()
    await wait_until(lambda: len(held) == 7)
    assert b" 200 OK" in await exchange(small, LAST)
    for _, writer in (*kept, *refused):
        writer.close()


# ---- time ----


async def test_headers_that_do_not_come(hasty: Setting) -> None:
    for parts in ((b"GET / HTTP/1.1\r\na: b\r\n",), (), (b"\r\n",)):
        assert "headers did not arrive within 0.3 s" in error_of(await exchange(hasty, *parts), 408)


@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/chat/completions"])
async def test_a_body_that_does_not_come(hasty: Setting, path: bytes) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"
    assert "body did not arrive within 0.3 s" in error_of(await exchange(hasty, head), 408)


async def test_a_body_that_trickles_is_cut_while_a_stream_goes_on(hasty: Setting) -> None:
    await hasty.add_pair(Behaviour(pause_s=0.02))
    stream = asyncio.create_task(hasty.complete("x", max_tokens=60, stream=True))

    async def trickle(head: bytes, drop: bytes) -> bytes:
        reader, writer = await connect(hasty)
        writer.write(head)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(drop)
            await asyncio.sleep(0.01)
        writer.close()
        return await reading

    chunked = POST + b"transfer-encoding: chunked\r\n\r\n"
    answers = await asyncio.gather(trickle(chunked, chunk(b" ")), trickle(POST, b"a: b\r\n"))
    assert not stream.done()
    assert "body did not" in error_of(answers[0], 408) and "headers did not" in error_of(answers[1], 408)
    response = await stream
    assert response.text.count("data: ") == 61 and response.text.endswith("data: [DONE]\n\n")


async def test_empty_lines_do_not_keep_a_connection_for_ever(hasty: Setting) -> None:
    reader, writer = await connect(hasty)
    writer.write(GET)
    await reader.readuntil(b"]}")
    writer.write(b"\r\n")
    assert "headers did not arrive" in error_of(await reader.read(), 408)
    writer.close()


async def test_an_idle_connection_is_kept_as_long_as_told_and_no_longer(folder: Path) -> None:
    async with running(folder, limits=HttpLimits(keep_alive_timeout_s=0.3)) as setting:
        reader, writer = await connect(setting)
        loop = asyncio.get_running_loop()
        for _ in range(2):
            began = loop.time()  # before the gateway's clock starts: the answer may be read late
            writer.write(GET)
            await reader.readuntil(b"]}")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        assert loop.time() - began >= 0.29
        writer.close()
    assert HttpLimits().keep_alive_timeout_s == 75


async def test_a_client_that_waits_for_its_answer_is_not_slow(hasty: Setting) -> None:
    await hasty.add_pair(Behaviour(pause_s=0.02))
    body = b'{"prompt": "x", "max_tokens": 30}'
    head = POST + b"content-length: %d\r\n\r\n" % len(body)
    answer = await exchange(hasty, head + body + b"GET /hal")  # and the beginning of another request
    assert answer.startswith(b"HTTP/1.1 200") and b'"completion_tokens":30' in answer
    assert answer.count(b"HTTP/1.1") == 2 and b"HTTP/1.1 408" in answer


# ---- what is no HTTP, and what is ----


async def test_garbage_after_a_request_does_not_take_its_answer(setting: Setting) -> None:
    await setting.add(Role.UNIFIED)
    body = b'{"prompt": "x", "max_tokens": 3}'
    head = POST + b"content-length: %d\r\n\r\n" % len(body)
    for garbage in (b"garbage\r\n\r\n", b"}" * 50):
        answer = await exchange(setting, head + body + garbage)
        assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1") == 1
    for number in (1, 5):
        answer = await exchange(setting, GET * number + b"garbage\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200 OK") == number


async def test_nothing_of_a_refused_request_is_answered_twice(small: Setting) -> None:
    """The rest of a refused body, complete or not, starts no route."""
    await small.add(Role.UNIFIED)
    text = b'{"prompt": "' + b"x" * 2100 + b'"}'
    head = POST + b"transfer-encoding: chunked\r\n\r\n"
    answer = await exchange(small, head + chunk(text[:2050]) + chunk(text[2050:]) + b"0\r\n\r\n" + GET)
    assert answer.count(b"HTTP/1.1") == 1 and "2000 bytes" in error_of(answer, 413)
    headers = b"".join(b"a%d: b\r\n" % number for number in range(30))
    small_body = b'{"prompt": "x", "max_tokens": 1}'
    head = POST + headers + b"content-length: %d\r\n\r\n" % len(small_body)
    answer = await exchange(small, head + small_body + GET)
    assert answer.count(b"HTTP/1.1") == 1 and "32 headers" in error_of(answer, 431)
    [worker] = small.workers
    assert worker.assigned == []


async def test_the_rest_of_a_refused_request_meets_no_fault(small: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """The parser goes on to the end of what it was fed; uvicorn would tell of an exception on the way."""
    caplog.set_level(logging.WARNING, "uvicorn.error")
    headers = b"".join(b"a%d: b\r\n" % number for number in range(30))
    error_of(await exchange(small, POST + headers + b"content-length: 5\r\n\r\nhello" + GET), 431)
    error_of(await exchange(small, POST + headers + b"content-length: 0\r\n\r\n"), 431)
    chunks = chunk(b"x" * 2050) + chunk(b"y") + b"0\r\n\r\n"
    error_of(await exchange(small, POST + b"transfer-encoding: chunked\r\n\r\n" + chunks + GET), 413)
    assert [each.getMessage() for each in caplog.records if each.name == "uvicorn.error"] == []
    error_of(await exchange(small, b"nonsense\r\n\r\n"), 400)
    assert [each.getMessage() for each in caplog.records if each.name == "uvicorn.error"] != []


async def test_no_connection_is_left_behind(small: Setting) -> None:
    connections: set[Any] = small.gateway._server.server_state.connections
    for _ in range(5):
        await exchange(small, b"nonsense\r\n\r\n")
        reader, writer = await connect(small)
        writer.write(POST + b"content-length: 100\r\n\r\n{")
        writer.close()
        await reader.read()
    await wait_until(lambda: not connections)
    assert await exchange(small, LAST)
