"""Virtual time passes exactly, and at once."""

import asyncio

from tests.doubles.virtual_loop import VirtualLoop, run_virtually


def test_sleeps_take_exactly_their_time() -> None:
    loop = VirtualLoop()
    woken = []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((seconds, loop.now()))

    async def both() -> None:
        await asyncio.gather(sleeper(3600.0), sleeper(0.5))

    run_virtually(both(), loop)
    assert woken == [(0.5, 0.5), (3600.0, 3600.0)]
