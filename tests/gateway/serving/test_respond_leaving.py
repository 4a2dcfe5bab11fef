"""What a client waits for ends when it leaves."""

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from gateway.serving.respond import unless_left


async def turns() -> None:
    """A few turns of the loop, in which everything that can go on does."""
    for _ in range(9):
        await asyncio.sleep(0)


class Client:
    """A client as the server tells of it: it stays until `left` is set."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.num_asked = 0

    async def receive(self) -> dict[str, Any]:
        self.num_asked += 1
        if self.num_asked > 1:
            await self.left.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"", "more_body": False}


async def test_work_ends_when_its_client_leaves() -> None:
    client, is_cancelled = Client(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    asking = asyncio.create_task(unless_left(client.receive, work()))
    await turns()
    assert not asking.done()
    client.left.set()
    with pytest.raises(ClientDisconnect):
        await asking
    async with asyncio.timeout(9):
        await is_cancelled.wait()


async def test_the_work_of_a_client_that_stays_gives_what_it_gives() -> None:
    client = Client()

    async def work() -> int:
        await turns()
        return 7

    async def fails() -> int:
        raise OSError("of the work")

    assert await unless_left(client.receive, work()) == 7
    with pytest.raises(OSError, match="of the work"):
        await unless_left(client.receive, fails())
    await turns()
    assert len(asyncio.all_tasks()) == 1, "the task that listens for the client has ended"


async def test_work_ends_with_its_caller() -> None:
    client, is_cancelled = Client(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    asking = asyncio.create_task(unless_left(client.receive, work()))
    await turns()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    async with asyncio.timeout(9):
        await is_cancelled.wait()
