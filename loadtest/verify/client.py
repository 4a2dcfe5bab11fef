"""The client of a run: each request waits for its turn and a free place, and is counted."""

import asyncio
from uuid import uuid4

from loadtest.http_exchange import Server
from loadtest.verify.answers import Ask, Heard
from loadtest.verify.asking import hear
from loadtest.verify.bounds import Bounds, Pace, Spent
from loadtest.verify.probe import Dialect
from runtime.clock import Clock


class Client:
    """Sends requests within the bounds. `spent` says what they have cost."""

    def __init__(self, server: Server, clock: Clock, dialect: Dialect, bounds: Bounds) -> None:
        self.server, self.clock, self.dialect, self.bounds = server, clock, dialect, bounds
        self.spent = Spent()
        self.hung_s = 2 * bounds.hung_s  # until the quiet phase has shown how long an answer takes
        self.early_s = 0.01  # after which a client leaves that waits for no token
        self.began_s = clock.now()
        self._salt = f"baton-verify-{uuid4().hex}"
        self._pace = Pace(bounds.rate, bounds.together)
        self._places = asyncio.Semaphore(bounds.together)

    @property
    def over(self) -> str:
        """The bound that is reached; empty: none."""
        return self.spent.reached(self.bounds, self.clock.now() - self.began_s)

    async def turn(self, num_tokens: int, pace: Pace | None = None) -> None:
        """Waits until one more request may be sent, and counts it with its prompt."""
        self.spent.requests += 1
        self.spent.tokens += num_tokens
        await asyncio.sleep((pace or self._pace).wait_s(self.clock.now()))

    async def ask(
        self, ask: Ask, *, stream: bool, is_cold: bool = False, leave_after: int | None = None, pace: Pace | None = None
    ) -> Heard:
        """One request in its turn. `is_cold`: with a salt of its own. `leave_after` 0: the client leaves before
        its first token. `pace`: another one than that of the bounds."""
        await self.turn(len(ask.prompt), pace)
        body = self.dialect.body(ask, stream, uuid4().hex if is_cold else self._salt)
        async with self._places:
            heard = await hear(
                self.server, self.clock, body, stream=stream, timeout_s=self.hung_s, leave_after=leave_after,
                leave_after_s=self.early_s if leave_after == 0 else None,
            )  # fmt: skip
        self.spent.tokens += heard.num_tokens
        self.spent.ended += 1
        return heard
