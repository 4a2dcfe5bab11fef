"""Whether a request may come in now: choices in flight are bounded, and so are the bytes that are not yet tokens.

Beyond a bound clients get 429 with Retry-After. Pure, on one loop. What it does not know: HTTP, workers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from protocol.errors import Overloaded

BODIES = 16  # of the longest length, at the same time


class Admission:
    """`num_in_flight` tells how many choices workers have now."""

    def __init__(self, max_choices: int, max_body_bytes: int, num_in_flight: Callable[[], int]) -> None:
        self._max_choices = max_choices
        self._max_bytes = BODIES * max_body_bytes
        self._num_in_flight = num_in_flight
        self._num_entering = 0  # choices of requests that are being tokenised
        self.num_bytes = 0  # that are being read, parsed or tokenised

    def check(self) -> None:
        """Overloaded when there is no room for even one choice: what follows would be in vain."""
        self._check_room(1)

    @contextmanager
    def entering(self, num_choices: int) -> Iterator[None]:
        """Counts `num_choices` until the block ends, by when workers have them. Overloaded when they are too many."""
        self._check_room(num_choices)
        self._num_entering += num_choices
        try:
            yield
        finally:
            self._num_entering -= num_choices

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """Counts what the block says that it reads, until it ends: also while that waits for its turn to be parsed.
        Overloaded when all bodies together are too long."""
        total = 0

        def read(num_bytes: int) -> None:
            nonlocal total
            total += num_bytes
            self.num_bytes += num_bytes
            if self.num_bytes > self._max_bytes:
                raise Overloaded(f"requests of more than {self._max_bytes} bytes are being read; try again")

        try:
            yield read
        finally:
            self.num_bytes -= total

    def _check_room(self, num_choices: int) -> None:
        known = self._num_in_flight() + self._num_entering
        if known + num_choices > self._max_choices:
            raise Overloaded(
                f"{known} choices are in flight and this request has {num_choices}, "
                f"expected at most {self._max_choices} in all; try again"
            )
