"""Future events in the order of virtual time. Events of the same moment run in the order in which they were set."""

from collections.abc import Callable
from heapq import heappop, heappush

from tests.doubles.clock import VirtualClock


class Agenda:
    """A clock, and what is due."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.num_done = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._num_set = 0

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.clock.now()

    def at(self, moment: float, call: Callable[[], None]) -> None:
        """`call` is made at `moment`, or now if that has passed."""
        self._num_set += 1
        heappush(self._due, (moment, self._num_set, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """`call` is made `seconds` from now."""
        self.at(self.now + seconds, call)

    def step(self) -> None:
        """Makes the next call; there is always one, because gateways tick."""
        moment, _, call = heappop(self._due)
        self.clock.advance(max(0.0, moment - self.now))
        self.num_done += 1
        call()
