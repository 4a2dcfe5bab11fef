"""A sweep: finds the largest rate at which enough requests meet the objectives. Pure, but for the runs between.

double the rate while enough meet them --> halve it while too few do --> between the two, the geometric mean
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.measure import Load, Measured
from loadtest.work.arrivals import Arrivals, Gamma
from protocol.errors import ConfigError

FIRST_RATE = 1.0


@dataclass(frozen=True)
class Point:
    """One run: its rate, and whether it was good enough. `is_known` is False if the client was the bottleneck."""

    rate: float
    is_good: bool
    is_known: bool = True


@dataclass(frozen=True)
class Search:
    """How to search, and how far."""

    first_rate: float
    burstiness: float
    target_share: float
    most_runs: int
    precision: float

    def next_arrivals(self, load: Load, runs: Sequence[Measured]) -> Arrivals | None:
        """Those of the next run. None when the search is over."""
        rate = self.next_rate(self.points(runs))
        return None if rate is None else Gamma(rate, self.burstiness)

    def next_rate(self, points: Sequence[Point]) -> float | None:
        """The rate to try next. None when the rate is known well enough, or cannot be known here."""
        if not points:
            return self.first_rate
        if len(points) == self.most_runs or not points[-1].is_known:
            return None
        best, worst = bounds(points)
        if worst is None:
            assert best is not None
            return best * 2
        if best is None:
            return worst / 2
        return None if worst / best <= self.precision else math.sqrt(best * worst)

    def points(self, runs: Sequence[Measured]) -> list[Point]:
        """The runs, judged. One that was stopped, by the server's queue or by its user, is not good."""
        tried = []
        for run in runs:
            assert isinstance(run.load.arrivals, Gamma)
            good = (run.figures.good_share or 0.0) >= self.target_share and not run.progress.why
            tried.append(Point(run.load.arrivals.rate, good, run.refusal is None))
        return tried

    def sentences(self, runs: Sequence[Measured]) -> list[str]:
        """What was found."""
        points = self.points(runs)
        best, worst = bounds(points)
        slos = " ".join(f"{name}:{limit:g}" for name, limit in runs[0].load.slos.items())
        enough = f"{self.target_share:.0%} of the requests meet {slos}"
        if best is None:
            tried = f"down to {worst:.3g} a second" if worst is not None else "at any rate that this client can send"
            lines = [f"at no rate, {tried}, {enough}"]
        elif worst is None:
            lines = [f"up to {best:.3g} a second, the largest rate that was tried, {enough}"]
        else:
            lines = [f"up to {best:.3g} a second {enough}, and at {worst:.3g} fewer do"]
        if not points[-1].is_known:
            lines.append(f"at {points[-1].rate:.3g} a second the search ended: {runs[-1].refusal}")
        return lines

    def status(self, runs: Sequence[Measured]) -> int:
        """0 if a rate was found, else 1. Failed requests above it are expected."""
        return int(bounds(self.points(runs))[0] is None)


def bounds(points: Sequence[Point]) -> tuple[float | None, float | None]:
    """The largest good rate below every rate that is not good, and the least that is not good."""
    worst = min((point.rate for point in points if point.is_known and not point.is_good), default=None)
    good = [point.rate for point in points if point.is_known and point.is_good]
    best = max((rate for rate in good if worst is None or rate < worst), default=None)
    return best, worst


def search_of(asked: argparse.Namespace) -> Search:
    """The search that the flags describe. ConfigError if they describe none."""
    if not asked.goodput:
        raise ConfigError(
            "baton bench sweep: expected --goodput, for example --goodput ttft:500 itl:50", param="goodput"
        )
    for name in ("ramp_up_strategy", "max_concurrency"):
        if getattr(asked, name) is not None:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}: a sweep chooses the rate itself; expected no --{flag}", param=flag)
    if asked.dataset_name == "mooncake" or asked.repeat > 1:
        raise ConfigError("baton bench sweep: a trace has rates of its own, and --repeat is not for a sweep")
    first = asked.request_rate if math.isfinite(asked.request_rate) else FIRST_RATE
    asked.request_rate = first
    return Search(first, asked.burstiness, asked.target_share, asked.most_runs, asked.precision)
