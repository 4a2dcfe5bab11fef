"""A stream beside other requests: when each of its pieces came, and how long it stood still."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Final

import httpx

from runtime.clock import Clock, MonotonicClock
from tests.e2e.baton_process import PATIENCE_S

BOUND_MS: Final = 250  # the longest gap that is wanted, unless twice the calm one is longer
_BODY: Final = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0}


@dataclass(eq=False)
class Stream:
    """A neighbour: streams that follow one another, and when each piece came, by the number of its stream."""

    url: str
    clock: Clock = field(default_factory=MonotonicClock)

    def __post_init__(self) -> None:
        self.pieces: list[tuple[float, int]] = []
        self._is_over = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        body = {**_BODY, "stream": True, "ignore_eos": True, "max_tokens": 1500}
        with httpx.Client(timeout=PATIENCE_S) as client:
            for number in count():
                with client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
                    for line in answer.iter_lines():
                        if self._is_over:
                            return
                        if line.startswith("data: "):
                            with self._news:
                                self.pieces.append((self.clock.now(), number))
                                self._news.notify_all()

    @contextmanager
    def running(self) -> "Iterator[Stream]":
        """Reads until the end of the block, which begins with the first piece."""
        self._thread.start()
        try:
            self.wait()
            yield self
        finally:
            self._is_over = True
            self._thread.join()

    def wait(self) -> None:
        """Until another piece has come."""
        with self._news:
            seen = len(self.pieces)
            assert self._news.wait_for(lambda: len(self.pieces) > seen, PATIENCE_S), "the stream has ended"

    def worst(self, start: float, end: float) -> tuple[float, float]:
        """The moments of the two pieces of a stream with the longest time between them, of which a part lies in
        [start, end); (start, start) if there are none."""
        with self._news:
            gaps = [
                (before, after)
                for (before, one), (after, other) in pairwise(self.pieces)
                if one == other and after >= start and before < end
            ]
        return max(gaps, default=(start, start), key=lambda gap: gap[1] - gap[0])

    def forget(self) -> None:
        """Forgets all pieces but the last one."""
        with self._news:
            del self.pieces[:-1]
