"""Which workers have still to say that they have forgotten their cached KV."""

import asyncio
from collections.abc import Iterable
from itertools import count


class Flushes:
    """Every flush that somebody waits for, by its number."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._waiting: dict[int, tuple[set[bytes], asyncio.Event]] = {}

    def begin(self, identities: Iterable[bytes]) -> tuple[int, asyncio.Event]:
        """The number of a new flush, and what is set when every one of these workers has answered or left."""
        number, done, waiting = next(self._numbers), asyncio.Event(), set(identities)
        self._waiting[number] = waiting, done
        if not waiting:
            done.set()
        return number, done

    def answered(self, number: int, identity: bytes) -> None:
        """A worker has flushed."""
        if (found := self._waiting.get(number)) is not None:
            waiting, done = found
            waiting.discard(identity)
            if not waiting:
                done.set()

    def left(self, identity: bytes) -> None:
        """A worker is lost, and its cache with it."""
        for number in self._waiting:
            self.answered(number, identity)

    def waiting(self, number: int) -> list[bytes]:
        """The workers that have not answered."""
        return sorted(self._waiting[number][0])

    def end(self, number: int) -> None:
        """Nobody waits for this flush any more."""
        del self._waiting[number]
