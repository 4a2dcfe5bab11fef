"""Flushes of the workers' caches: who is asked, in which order, and who has still to answer.

    begin --> prefill workers --all have answered or left--> the others --all have answered or left--> done

Prefill workers go first. Else a decode worker could flush, and then get KV from a prefill worker that still has old KV.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from protocol.messages_gateway import Role

STAGES: Final = ((Role.PREFILL,), (Role.DECODE, Role.UNIFIED))
Ask = Callable[[int, tuple[Role, ...]], Iterable[bytes]]


@dataclass(eq=False)
class Flush:
    """One flush. `done` is set when every worker has answered or left."""

    number: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: set[bytes] = field(default_factory=set)  # who has still to answer, of those that were asked
    stages: deque[tuple[Role, ...]] = field(default_factory=lambda: deque(STAGES))  # still to be asked


class Flushes:
    """Every flush that is under way. `ask` sends a flush to all present workers of some roles, and tells who they are.

    A worker is asked when its turn has come: one that joined in the meantime may have old KV from a prefill worker.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._numbers = count(1)
        self._flushes: dict[int, Flush] = {}

    def begin(self) -> Flush:
        """A new flush."""
        flush = Flush(next(self._numbers))
        self._flushes[flush.number] = flush
        self._go_on(flush)
        return flush

    def answered(self, number: int, identity: bytes) -> None:
        """A worker has flushed."""
        if (flush := self._flushes.get(number)) is not None:
            flush.waiting.discard(identity)
            self._go_on(flush)

    def left(self, identity: bytes) -> None:
        """A worker is lost. If its process returns, Welcome tells it that it has missed flushes."""
        for number in list(self._flushes):
            self.answered(number, identity)

    def end(self, flush: Flush) -> None:
        """Nobody waits for this flush any more."""
        self._flushes.pop(flush.number, None)

    def _go_on(self, flush: Flush) -> None:
        while not flush.waiting and flush.stages:
            flush.waiting.update(self._ask(flush.number, flush.stages.popleft()))
        if not flush.waiting:
            flush.done.set()
            self.end(flush)
