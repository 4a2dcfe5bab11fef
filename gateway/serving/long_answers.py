"""Long answers of one gateway: one part is encoded at a time, in a thread, and what they hold together is bounded.

An answer holds its tokens and log-probabilities until its client has read it. Beyond the bound, those are cut whose
client takes nothing. If that does not suffice, the answer that grows fails with 429.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gateway.serving.parts import next_part
from protocol.errors import Overloaded
from runtime.clock import Clock, MonotonicClock

MAX_HELD_BYTES: Final = 256 * 1024 * 1024
STALLED_S: Final = 1.0  # a client that has taken nothing for so long may be cut where memory is short


@dataclass(eq=False)
class Held:
    """What one answer holds. `cut`: ends its connection."""

    cut: Callable[[], None]
    num_bytes: int = 0
    sends_since: float | None = None  # its connection has accepted nothing since; None: nothing is being sent


class LongAnswers:
    """No locks but one: everything else runs on the gateway's loop."""

    def __init__(self, max_bytes: int = MAX_HELD_BYTES, clock: Clock | None = None) -> None:
        self._max_bytes = max_bytes
        self._clock = MonotonicClock() if clock is None else clock
        self._one_part = asyncio.Lock()  # several threads would keep the loop waiting for Python's own lock
        self._all: set[Held] = set()
        self.num_bytes = 0  # what they all hold

    @contextmanager
    def holding(self, cut: Callable[[], None]) -> Iterator[Held]:
        """An answer that holds nothing yet, until the block ends."""
        held = Held(cut)
        self._all.add(held)
        try:
            yield held
        finally:
            self._drop(held)

    def _drop(self, held: Held) -> None:
        if held in self._all:
            self._all.remove(held)
            self.num_bytes -= held.num_bytes

    def resize(self, held: Held, num_bytes: int) -> None:
        """The answer holds so many bytes now. Overloaded if there is no room for them."""
        if held not in self._all:  # it was cut
            return
        grown = num_bytes - held.num_bytes
        held.num_bytes = num_bytes
        self.num_bytes += grown
        if grown <= 0 or self.num_bytes <= self._max_bytes:
            return

        for other in to_cut(self._all, self.num_bytes - self._max_bytes, self._clock.now()):
            self._drop(other)
            other.cut()
        if self.num_bytes > self._max_bytes:
            self._drop(held)
            raise Overloaded(
                f"answers that wait for their clients hold more than {self._max_bytes} bytes; try again, "
                "or ask for fewer log-probabilities"
            )

    @contextmanager
    def sending(self, held: Held) -> Iterator[None]:
        """The block hands something to the connection."""
        held.sends_since = self._clock.now() if held.num_bytes else None
        try:
            yield
        finally:
            held.sends_since = None

    async def next_part(self, blocks: Iterator[bytes]) -> bytes:
        """The next blocks, as parts.next_part has them, encoded in a thread. Answers take turns."""
        async with self._one_part:
            return await asyncio.to_thread(next_part, blocks)


def to_cut(answers: set[Held], num_bytes: int, now: float) -> list[Held]:
    """Those to cut so that `num_bytes` come free, or as many as possible: of those that are stalled the largest."""
    stalled = [answer for answer in answers if answer.sends_since is not None and now - answer.sends_since >= STALLED_S]
    cut, num_free = list[Held](), 0
    for held in sorted(stalled, key=lambda answer: answer.num_bytes, reverse=True):
        if num_free >= num_bytes:
            break
        cut.append(held)
        num_free += held.num_bytes
    return cut
