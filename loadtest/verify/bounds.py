"""What a run may cost a server, and when it stops because the server suffers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

MOST_ERRORS = 0.05
FEWEST_ERRORS = 3
FEWEST_ENDED = 20
SLOWER = 2.0
SLOWER_S = 0.25  # a server that answers in milliseconds may double without harm
_NUM_FIRST = 8  # answers whose median is compared


@dataclass(frozen=True)
class Bounds:
    """A run ends when one of them is reached. `rate`: requests a second, in bursts of `together`. `hung_s`: a request
    that takes longer, beside 5 times what the slowest quiet one took, hangs."""

    requests: int = 300
    tokens: int = 150_000
    rate: float = 2.0
    together: int = 4
    seconds: float = 600.0
    hung_s: float = 30.0


@dataclass
class Spent:
    """What a run has cost so far, and how the server took it. `ttfts` are those of answers under load."""

    requests: int = 0
    tokens: int = 0
    ended: int = 0
    errors: int = 0
    ttfts: list[float] = field(default_factory=list)

    def reached(self, bounds: Bounds, seconds: float) -> str:
        """The bound that is reached; empty: none."""
        pairs = ((self.requests, bounds.requests, "requests"), (self.tokens, bounds.tokens, "tokens"))
        return next((f"{limit:,} {noun}" for spent, limit, noun in pairs if spent >= limit), "") or (
            f"{bounds.seconds / 60:g} minutes" if seconds >= bounds.seconds else ""
        )

    def suffering(self) -> str:
        """Why the run must stop for the server's sake; empty: it need not."""
        if self.errors >= FEWEST_ERRORS and self.ended >= FEWEST_ENDED and self.errors > MOST_ERRORS * self.ended:
            return f"{self.errors} of {self.ended} requests were refused, more than {MOST_ERRORS:.0%}"
        return slower(self.ttfts)


def slower(ttfts: Sequence[float]) -> str:
    """Whether the last answers began much later than the first ones, in words."""
    if len(ttfts) < 2 * _NUM_FIRST:
        return ""
    first, last = median(ttfts[:_NUM_FIRST]), median(ttfts[-_NUM_FIRST:])
    is_slow = last > SLOWER * first and last - first > SLOWER_S
    return f"its TTFT went from {first:.2f} s to {last:.2f} s" if is_slow else ""


class Pace:
    """When the next request may be sent: `rate` a second on average, at most `together` in a burst."""

    def __init__(self, rate: float, together: int) -> None:
        self._gap_s = 1.0 / rate
        self._burst_s = (together - 1) * self._gap_s
        self._due_s = float("-inf")  # of the next one, if all were sent evenly

    def wait_s(self, now_s: float) -> float:
        """How long a request that is to be sent now must wait. It counts as sent."""
        due_s = max(self._due_s, now_s)
        self._due_s = due_s + self._gap_s
        return max(0.0, due_s - self._burst_s - now_s)
