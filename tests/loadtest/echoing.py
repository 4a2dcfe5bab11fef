"""The echo server in a test's own event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.client.echo import Schedule, serve
from loadtest.http_exchange import Server
from runtime.clock import MonotonicClock


@asynccontextmanager
async def echoing(schedule: Schedule = Schedule(0.01, 0.002)) -> AsyncIterator[Server]:  # noqa: B008  # frozen
    """Where it answers."""
    ready: asyncio.Queue[int] = asyncio.Queue()
    serving = asyncio.create_task(serve(schedule, 0, MonotonicClock(), ready.put_nowait))
    try:
        yield Server("127.0.0.1", await ready.get())
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        for _ in range(3):
            await asyncio.sleep(0)  # transports close a turn later
