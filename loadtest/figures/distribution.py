"""Percentiles and their company, of many values. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Distribution:
    """A percentile is the nearest rank. One whose rank is the maximum's is None: too few values support it."""

    count: int
    mean: float
    least: float
    most: float
    p50: float
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None

    @classmethod
    def of(cls, values: "Iterable[float] | np.ndarray[Any, Any]") -> "Distribution | None":
        """None without values."""
        ordered = np.sort(np.fromiter(values, float) if not isinstance(values, np.ndarray) else values)
        count = len(ordered)
        if not count:
            return None

        ranks = {name: rank_of(share, count) for name, share in SHARES.items()}
        percentiles = {name: float(ordered[rank - 1]) if rank < count else None for name, rank in ranks.items()}
        middle = float(ordered[ranks["p50"] - 1])
        return cls(
            count=count, mean=float(ordered.mean()), least=float(ordered[0]), most=float(ordered[-1]), p50=middle,
            p90=percentiles["p90"], p95=percentiles["p95"], p99=percentiles["p99"], p999=percentiles["p999"],
        )  # fmt: skip


def rank_of(share: float, count: int) -> int:
    """The nearest rank of a percentile among `count` ordered values. The least value has rank 1."""
    return max(1, math.ceil(share * count - 1e-9))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of `values` do not exceed (nearest rank); NaN without values."""
    return sorted(values)[rank_of(share, len(values)) - 1] if values else math.nan


def milliseconds(seconds: Iterable[float | None]) -> list[float]:
    """Those that are known."""
    return [second * 1e3 for second in seconds if second is not None]


def jain(values: Iterable[float]) -> float | None:
    """Jain's index of fairness: 1 if all are equal, 1/n if one has all. None without values."""
    given = np.fromiter(values, float)
    squares = float((given**2).sum())
    return float(given.sum()) ** 2 / (len(given) * squares) if squares else None


def number(value: float | None) -> str:
    """Three significant digits."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
