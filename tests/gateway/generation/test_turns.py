"""Clients take turns, whatever number of requests each has waiting; who leaves waits no longer."""

import asyncio
import random
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from gateway.generation.turns import Turns
from gateway.serving.respond import unless_left


async def turns() -> None:
    """A few turns of the loop, in which everything that can go on does."""
    for _ in range(9):
        await asyncio.sleep(0)


async def test_clients_take_turns_and_the_requests_of_one_do_in_their_order() -> None:
    line, done = Turns(), list[str]()

    async def work(name: str) -> None:
        async with line.one(name[0]):
            done.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*map(work, ("a0", "a1", "a2", "a3", "b0", "c0", "b1")))
    assert done == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


@pytest.mark.parametrize("seed", range(30))
async def test_any_order_of_comers_and_leavers_works_one_at_a_time_and_leaves_nothing(seed: int) -> None:
    rng, line, working = random.Random(seed), Turns(), list[str]()

    async def work(client: str) -> None:
        async with line.one(client):
            assert not working
            working.append(client)
            try:
                for _ in range(rng.randrange(3)):
                    await asyncio.sleep(0)
                if rng.random() < 0.2:
                    raise OSError
            finally:
                working.remove(client)

    tasks = list[asyncio.Task[None]]()
    for _ in range(60):
        tasks.append(asyncio.create_task(work(rng.choice("abc"))))
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(end is None or isinstance(end, OSError | asyncio.CancelledError) for end in ends)
    assert not line._lines and not line._is_taken
    async with asyncio.timeout(9), line.one("d"):
        assert line._is_taken


async def test_a_turn_that_comes_as_its_request_is_cancelled_goes_to_the_next_one() -> None:
    line = Turns()

    async def work(client: str) -> str:
        async with line.one(client):
            return client

    async with line.one("a"):
        waits, other = asyncio.create_task(work("b")), asyncio.create_task(work("c"))
        await turns()
    waits.cancel()  # its turn was given to it, and it does not know yet
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert await other == "c" and not line._is_taken


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
