"""Confidence intervals by resampling, and the sentence that says what differs between two reports. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadtest.figures.distribution import rank_of

ROUNDS = 400
LEVEL = 0.95
Values = "np.ndarray[Any, Any]"
Run = Mapping[str, Sequence[float | None]]  # by column (ttft_ms, ...): a value for each request


@dataclass(frozen=True)
class Row:
    """One figure of both reports. `ratio` is B / A with its interval; None where either has no such figure."""

    name: str
    words: str
    more_is_better: bool
    a: float | None
    b: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


COMPARED = {"ttft": "TTFT", "tpot": "TPOT", "gap": "worst gap", "e2e": "E2E"}
_PERCENTS = (50, 99)
RATES = {"tokens_per_s": "tokens/s", "requests_per_s": "requests/s", "goodput_per_s": "goodput/s"}


def compare(
    a: Sequence[Run], b: Sequence[Run], rates: Mapping[str, tuple[Sequence[float], Sequence[float]]], seed: int = 0
) -> list[Row]:
    """A row for each figure. Runs are resampled, then the requests of each. Rates, one for each run, need two runs."""
    rng = np.random.default_rng(seed)
    rows = [_latency(name, percent, a, b, rng) for name in COMPARED for percent in _PERCENTS]
    for name, words in RATES.items():
        of_a, of_b = rates.get(name, ((), ()))
        rows.append(_rate(name, words, of_a, of_b, rng))
    return [row for row in rows if row.a is not None or row.b is not None]


def _latency(name: str, percent: int, a: Sequence[Run], b: Sequence[Run], rng: np.random.Generator) -> Row:
    sides = [[values for run in runs if len(values := _column(run, f"{name}_ms"))] for runs in (a, b)]
    percentiles = [_percentile(np.concatenate(side), percent / 100) if side else None for side in sides]
    row = Row(f"{name}_p{percent}_ms", f"{COMPARED[name]} p{percent}", False, *percentiles)
    if not all(sides) or not all(percentiles):
        return row

    drawn = []
    for _ in range(ROUNDS):
        of_a, of_b = (_percentile(_resampled(side, rng), percent / 100) for side in sides)
        if of_a and of_b:
            drawn.append(of_b / of_a)
    return _with_interval(row, drawn)


def _rate(name: str, words: str, a: Sequence[float], b: Sequence[float], rng: np.random.Generator) -> Row:
    row = Row(name, words, True, *(float(np.mean(side)) if len(side) else None for side in (a, b)))
    if not row.a or row.b is None:
        return row
    if len(a) < 2 or len(b) < 2:  # nothing says how much a rate varies
        return _with_interval(row, ())
    drawn = [float(np.mean(rng.choice(b, len(b)))) / float(np.mean(rng.choice(a, len(a)))) for _ in range(ROUNDS)]
    return _with_interval(row, drawn)


def _column(run: Run, name: str) -> "np.ndarray[Any, Any]":
    return np.array([value for value in run.get(name, ()) if value is not None], float)


def _resampled(side: "Sequence[np.ndarray[Any, Any]]", rng: np.random.Generator) -> "np.ndarray[Any, Any]":
    runs = [side[index] for index in rng.integers(0, len(side), len(side))]
    return np.concatenate([values[rng.integers(0, len(values), len(values))] for values in runs])


def _percentile(values: "np.ndarray[Any, Any]", share: float) -> float | None:
    """The nearest rank; None if it would be the maximum's, save for the median."""
    rank = rank_of(share, len(values))
    if rank >= len(values) and share > 0.5:
        return None
    return float(np.partition(values, rank - 1)[rank - 1])


def _with_interval(row: Row, drawn: Sequence[float]) -> Row:
    """The row with its ratio, and an interval if there are ratios of resampled runs."""
    assert row.a and row.b is not None
    low, high = map(float, np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])) if drawn else (None, None)
    return replace(row, ratio=row.b / row.a, low=low, high=high)


def sentence(rows: Sequence[Row], num_runs: tuple[int, int]) -> str:
    """What differs, the largest difference first, and what the intervals do not cover."""
    told = sorted((row for row in rows if row.differs), key=lambda row: -abs(np.log(row.ratio or 1)))
    if told:
        text = "B against A: " + "; ".join(_clause(row) for row in told) + "."
    else:
        text = "No figure of B differs from A's by more than chance."
    alike = [row.words for row in rows if row.low is not None and not row.differs]
    if told and alike:
        text += f" Within chance: {', '.join(alike)}."
    if min(num_runs) < 2:
        text += " One run of a side says nothing about how much the machine drifts between runs: use --repeat."
    return text


def _clause(row: Row) -> str:
    assert row.ratio is not None and row.low is not None and row.high is not None
    better = (row.ratio > 1) == row.more_is_better
    percent = [f"{(end - 1) * 100:+.0f}%" for end in (row.ratio, row.low, row.high)]
    return f"{row.words} {percent[0]} ({percent[1]} to {percent[2]}), which is {'better' if better else 'worse'}"
