"""Confidence intervals by resampling, and the sentence that says what differs between two reports. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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


@dataclass(frozen=True)
class _Kind:
    name: str
    words: str
    column: str
    share: float  # the percentile
    more_is_better: bool = False


_KINDS = (
    _Kind("ttft_p50_ms", "TTFT p50", "ttft_ms", 0.5),
    _Kind("ttft_p99_ms", "TTFT p99", "ttft_ms", 0.99),
    _Kind("tpot_p50_ms", "TPOT p50", "tpot_ms", 0.5),
    _Kind("tpot_p99_ms", "TPOT p99", "tpot_ms", 0.99),
    _Kind("gap_p50_ms", "worst gap p50", "gap_ms", 0.5),
    _Kind("gap_p99_ms", "worst gap p99", "gap_ms", 0.99),
    _Kind("e2e_p50_ms", "E2E p50", "e2e_ms", 0.5),
    _Kind("e2e_p99_ms", "E2E p99", "e2e_ms", 0.99),
)
_RATES = (("tokens_per_s", "tokens/s"), ("requests_per_s", "requests/s"), ("goodput_per_s", "goodput/s"))


def compare(
    a: Sequence[Run], b: Sequence[Run], rates: Mapping[str, tuple[Sequence[float], Sequence[float]]], seed: int = 0
) -> list[Row]:
    """A row for each figure. Runs are resampled, then the requests of each. Rates, one for each run, need two runs."""
    rng = np.random.default_rng(seed)
    rows = [_latency(kind, a, b, rng) for kind in _KINDS]
    for name, words in _RATES:
        of_a, of_b = rates.get(name, ((), ()))
        rows.append(_rate(name, words, of_a, of_b, rng))
    return [row for row in rows if row.a is not None or row.b is not None]


def _latency(kind: _Kind, a: Sequence[Run], b: Sequence[Run], rng: np.random.Generator) -> Row:
    sides = [[_column(run, kind.column) for run in runs] for runs in (a, b)]
    sides = [[values for values in side if len(values)] for side in sides]
    found = [_percentile(np.concatenate(side), kind.share) if side else None for side in sides]
    row = Row(kind.name, kind.words, kind.more_is_better, found[0], found[1])
    if not all(sides) or not all(found):
        return row

    drawn = []
    for _ in range(ROUNDS):
        of_a, of_b = (_percentile(_resampled(side, rng), kind.share) for side in sides)
        if of_a and of_b:
            drawn.append(of_b / of_a)
    return _with_interval(row, drawn)


def _rate(name: str, words: str, a: Sequence[float], b: Sequence[float], rng: np.random.Generator) -> Row:
    found = [float(np.mean(side)) if len(side) else None for side in (a, b)]
    row = Row(name, words, True, found[0], found[1])
    if not found[0] or found[1] is None:
        return row
    if len(a) < 2 or len(b) < 2:  # nothing says how much a rate varies
        return Row(name, words, True, found[0], found[1], found[1] / found[0])
    drawn = [float(np.mean(rng.choice(b, len(b)))) / float(np.mean(rng.choice(a, len(a)))) for _ in range(ROUNDS)]
    return _with_interval(row, drawn)


def _column(run: Run, name: str) -> "np.ndarray[Any, Any]":
    return np.array([value for value in run.get(name, ()) if value is not None], float)


def _resampled(side: "Sequence[np.ndarray[Any, Any]]", rng: np.random.Generator) -> "np.ndarray[Any, Any]":
    runs = [side[place] for place in rng.integers(0, len(side), len(side))]
    return np.concatenate([values[rng.integers(0, len(values), len(values))] for values in runs])


def _percentile(values: "np.ndarray[Any, Any]", share: float) -> float | None:
    """The nearest rank; None if it would be the maximum's, save for the median."""
    rank = max(1, int(np.ceil(share * len(values) - 1e-9)))
    if rank >= len(values) and share > 0.5:
        return None
    return float(np.partition(values, rank - 1)[rank - 1])


def _with_interval(row: Row, drawn: Sequence[float]) -> Row:
    assert row.a and row.b is not None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if drawn else (None, None)
    as_floats = [None if end is None else float(end) for end in (low, high)]
    return Row(row.name, row.words, row.more_is_better, row.a, row.b, row.b / row.a, *as_floats)


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
