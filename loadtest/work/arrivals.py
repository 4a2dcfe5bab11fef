"""When conversations begin, in seconds from the start of the run. Pure: a pattern and a seed give one sequence.

every place at once   rate is infinite: a conversation begins as soon as --max-concurrency lets it (closed loop)
Poisson, gamma        gaps are independent; burstiness below 1 makes them burstier, above 1 more even
ramp                  the rate grows from one value to another over some seconds, then stays
trace                 the moments that a trace has, divided by the time scale
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, Protocol


class Arrivals(Protocol):
    """A pattern of arrivals."""

    def moments(self, seed: int) -> Iterator[float]:
        """Moments in seconds, never decreasing. Endless, save those of a trace."""
        ...

    def words(self) -> str:
        """The pattern in a few words."""
        ...


@dataclass(frozen=True)
class AtOnce:
    """Every conversation is due at once, so that free places decide: a closed loop."""

    def moments(self, seed: int) -> Iterator[float]:
        """Zeros."""
        return repeat(0.0)

    def words(self) -> str:
        """The pattern in a few words."""
        return "as soon as a place is free"


@dataclass(frozen=True)
class Gamma:
    """Gaps from a gamma distribution of mean 1/rate and shape `burstiness`. Shape 1 is a Poisson process."""

    rate: float
    burstiness: float = 1.0

    def moments(self, seed: int) -> Iterator[float]:
        """The first one is at 0."""
        rng = random.Random(f"arrivals {seed}")
        at = 0.0
        while True:
            yield at
            at += rng.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))

    def words(self) -> str:
        """The pattern in a few words."""
        kind = "Poisson" if self.burstiness == 1 else f"gamma, burstiness {self.burstiness:g}"
        return f"{self.rate:.4g} a second ({kind})"


@dataclass(frozen=True)
class Ramp:
    """A rate that goes from `start` to `end` in `over_s` seconds, linearly or exponentially, and then stays.

    Gaps of a process with rate 1 are stretched: the n-th arrival is where the integral of the rate reaches their sum.
    """

    start: float
    end: float
    over_s: float
    strategy: Literal["linear", "exponential"] = "linear"
    burstiness: float = 1.0

    def moments(self, seed: int) -> Iterator[float]:
        """The first one is at 0."""
        return map(self._when, Gamma(1.0, self.burstiness).moments(seed))

    def words(self) -> str:
        """The pattern in a few words."""
        return f"{self.start:g} to {self.end:g} a second, {self.strategy} over {self.over_s:g} s"

    def _when(self, number: float) -> float:
        """When `number` arrivals are expected: the inverse of the integral of the rate."""
        if self.start == self.end:
            return number / self.end
        if self.strategy == "linear":
            in_ramp = (self.start + self.end) / 2 * self.over_s
            if number < in_ramp:
                slope = (self.end - self.start) / self.over_s
                return (math.sqrt(max(0.0, self.start**2 + 2 * slope * number)) - self.start) / slope
        else:
            growth = math.log(self.end / self.start) / self.over_s
            in_ramp = (self.end - self.start) / growth
            if number < in_ramp:
                return math.log1p(number * growth / self.start) / growth
        return self.over_s + (number - in_ramp) / self.end


@dataclass(frozen=True)
class Replay:
    """The moments of a trace, `time_scale` times as fast."""

    at_s: Sequence[float]
    time_scale: float = 1.0

    def moments(self, seed: int) -> Iterator[float]:
        """One for each line of the trace; the first one is at 0."""
        for at in self.at_s:
            yield (at - self.at_s[0]) / self.time_scale

    def words(self) -> str:
        """The pattern in a few words."""
        return "when the trace says" + (f", {self.time_scale:g} times as fast" if self.time_scale != 1 else "")
