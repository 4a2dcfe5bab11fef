"""Time that moves only when it is told to."""


class VirtualClock:
    """A Clock in seconds that moves only when `advance` is called."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """The time last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves forward by `seconds` (not negative)."""
        if seconds < 0:
            raise ValueError(f"VirtualClock.advance: got {seconds}, expected at least 0")
        self._now += seconds
