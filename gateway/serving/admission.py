"""Decides whether a request is admitted: choices in flight are bounded, and so are bytes that are not yet tokens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from protocol.errors import Overloaded

BODIES = 16  # how many bodies of the greatest length may be held at a time


class Admission:
    """Decides whether a request is admitted: choices in flight are bounded, and so are the bytes not yet tokenised.
    Beyond a bound the client gets 429 with Retry-After. `num_in_flight` returns how many choices the workers have now.
    No locks: everything runs on the gateway's loop."""

    def __init__(self, max_choices: int, max_body_bytes: int, num_in_flight: Callable[[], int]) -> None:
        self._max_choices = max_choices
        self._max_bytes = BODIES * max_body_bytes
        self._num_in_flight = num_in_flight
        self._num_entering = 0  # choices of requests that are still being tokenised
        self.num_bytes = 0  # bytes being read, parsed or tokenised

    def check(self, num_choices: int = 1) -> None:
        """Raises Overloaded unless there is room for `num_choices`."""
        known = self._num_in_flight() + self._num_entering
        if known + num_choices > self._max_choices:
            raise Overloaded(
                f"{known} choices are in flight and this request has {num_choices}, "
                f"expected at most {self._max_choices} in all; try again"
            )

    @contextmanager
    def entering(self, num_choices: int) -> Iterator[None]:
        """Counts `num_choices` until the block ends; then the workers have them. Overloaded when they are too many."""
        self.check(num_choices)
        self._num_entering += num_choices
        try:
            yield
        finally:
            self._num_entering -= num_choices

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """Counts the bytes that the block reports, until the block ends. Overloaded when all bodies together are too
        long."""
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
