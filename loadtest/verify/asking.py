"""Sends one request, and hears its answer to the end, or until the client leaves."""

import asyncio

from loadtest.http_exchange import LATE, Broken, Server, exchange
from loadtest.verify.answers import Heard
from runtime.clock import Clock

COMPLETIONS = "/v1/completions"
_GOOD = (0, 200)


async def hear(
    server: Server,
    clock: Clock,
    body: bytes,
    *,
    stream: bool,
    timeout_s: float,
    leave_after: int | None = None,
    leave_after_s: float | None = None,
) -> Heard:
    """What came of one request. Without an end after `timeout_s` it is late. The client leaves when it has
    `leave_after` tokens, or after `leave_after_s`."""
    heard, began = Heard(leave_after=leave_after), clock.now()

    def take(now: float, line: bytes) -> bool:
        goes_on = heard.stream_line(line) if stream else heard.whole_line(line)
        if heard.first_s is None and heard.num_tokens:
            heard.first_s = now - began
        return goes_on

    try:
        async with asyncio.timeout(leave_after_s):
            heard.status = await exchange(server, clock, "POST", COMPLETIONS, body, take, timeout_s)
    except TimeoutError:
        heard.left = True
    except Broken as error:
        heard.broken, heard.is_late = str(error), error.kind.startswith(LATE)
    heard.took_s = clock.now() - began

    if heard.status not in _GOOD:  # such as a proxy's page
        heard.error, heard.malformed = heard.error or heard.malformed or "no words", ""
        heard.done = False
    return heard
