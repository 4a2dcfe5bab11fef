"""A gateway that is told to end: it leaves its port at once, and what clients have asked is answered."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.messages_gateway import ChoiceTokens, Role, Tokens
from testkit.fake_worker import Behaviour, FakeWorker
from tests.gateway.conftest import Setting, connect, events, running, wait_until

BOUND_S = 600.0  # nothing here waits for its end


def address(setting: Setting) -> tuple[str, int]:
    host, port = setting.gateway.url.removeprefix("http://").split(":")
    return host, int(port)


async def finish(worker: FakeWorker, text: str = "BC") -> None:
    """Sends what its only request still lacks."""
    assign = worker.assigned[-1]
    last = ChoiceTokens(assign.request_id, assign.attempt, 0, 1, tuple(map(ord, text)), "length")
    await worker.send(Tokens((last,)))


@asynccontextmanager
async def in_mid_stream(setting: Setting) -> AsyncIterator[tuple[FakeWorker, httpx.Response, AsyncIterator[str]]]:
    """A stream of three tokens that has brought its first one."""
    worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(script=lambda *_: (65,), stop_after=1))
    body = {"prompt": "x", "max_tokens": 3, "stream": True}
    async with setting.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.aiter_lines()
        assert "A" in await anext(lines)
        yield worker, response, lines


async def rest_of(lines: AsyncIterator[str]) -> list[Any]:
    return events("".join([f"{line}\n" async for line in lines]).lstrip("\n"))


def is_refused(where: tuple[str, int]) -> bool:
    try:
        socket.create_connection(where, timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


async def test_its_streams_end_whole_and_its_port_is_free_meanwhile(folder: Path) -> None:
    told: list[tuple[int, float]] = []
    async with running(folder, drain_timeout_s=BOUND_S) as setting:
        where = address(setting)
        setting.gateway.on_leaving = lambda num, bound_s: told.append((num, bound_s))
        idle_reader, idle_writer = await connect(setting)
        idle_writer.write(b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b"200" in await idle_reader.readline()
        async with in_mid_stream(setting) as (worker, _, lines):
            whole = asyncio.create_task(setting.complete("y", max_tokens=3))
            await worker.until(lambda: len(worker.assigned) == 2)
            setting.gateway.leave()
            assert told == [(2, BOUND_S)]
            while await idle_reader.read(1000):
                pass  # what was sent before the end
            idle_writer.close()
            with socket.create_server(where):  # another gateway may have the port
                assert not setting.gateway._server.should_exit

                await finish(worker)
                answer = await whole
                assert answer.json()["choices"][0]["text"] == "ABC" and answer.headers["connection"] == "close"
                stream = worker.assigned[0]
                last = ChoiceTokens(stream.request_id, 0, 0, 1, (66, 67), "length")
                await worker.send(Tokens((last,)))
                *chunks, done = await rest_of(lines)
        assert done is None and "".join(chunk["choices"][0]["text"] for chunk in chunks) == "BC"
        await wait_until(lambda: setting.gateway._server.should_exit)
        assert is_refused(where)
        assert setting.gateway.control.dispatch.retries.counts.total() == 0


async def test_without_requests_it_ends_at_once(folder: Path) -> None:
    async with running(folder, drain_timeout_s=BOUND_S) as setting:
        assert (await setting.client.get("/version")).status_code == 200  # its connection stays open
        setting.gateway.leave()
        await wait_until(lambda: setting.gateway._server.should_exit)


@pytest.mark.parametrize("how", ["a second signal", "the end of its bound", "no bound"])
async def test_what_is_not_answered_in_time_ends_with_an_error(folder: Path, how: str) -> None:
    async with running(folder, drain_timeout_s=0 if how == "no bound" else BOUND_S) as setting:
        async with in_mid_stream(setting) as (worker, _, lines):
            setting.gateway.leave()
            if how == "a second signal":
                setting.gateway.leave()
            elif how == "the end of its bound":
                assert not worker.cancelled
                setting.gateway._ends_at = 0.0
            [last] = await rest_of(lines)
            assert last["error"]["code"] == "unavailable"
            assert last["error"]["message"] == "the gateway is stopping"
            await worker.until(lambda: bool(worker.cancelled))
        await wait_until(lambda: setting.gateway._server.should_exit)


async def test_a_body_that_still_arrives_is_answered(folder: Path) -> None:
    async with running(folder, drain_timeout_s=BOUND_S) as setting:
        await setting.add(Role.UNIFIED)
        reader, writer = await connect(setting)
        body = b'{"prompt": "x", "max_tokens": 2}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body))
        await writer.drain()
        await wait_until(lambda: bool(setting.gateway._server.server_state.tasks))
        setting.gateway.leave()
        writer.write(body)
        answer = await reader.read()  # to the end of the connection
        assert b" 200 OK" in answer and b"connection: close" in answer
        writer.close()
