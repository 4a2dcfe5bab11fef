"""Figures from timings: percentiles, throughput, medians over rounds. Pure.

What it does not know: where the timings came from.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import median

from loadtest.client import Timing


@dataclass(frozen=True)
class Figures:
    """One round of one side. Latencies in milliseconds; throughput counts output tokens of answers that succeeded."""

    num_ok: int
    num_errors: int
    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    itl_max_ms: float
    e2e_p50_ms: float
    first_error: str


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of `values` do not exceed (nearest rank); NaN without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = max(1, -int(-share * len(ordered) // 1))  # ceiling
    return ordered[min(rank, len(ordered)) - 1]


def figures(timings: Sequence[Timing], duration_s: float) -> Figures:
    """What a round of `duration_s` seconds amounts to."""
    good = [timing for timing in timings if not timing.error]
    ttft = [timing.ttft_s * 1e3 for timing in good]
    itl = [gap * 1e3 for timing in good for gap in timing.itl_s]
    return Figures(
        num_ok=len(good),
        num_errors=len(timings) - len(good),
        output_tokens_per_s=sum(timing.num_tokens for timing in good) / duration_s,
        ttft_p50_ms=percentile(ttft, 0.5),
        ttft_p99_ms=percentile(ttft, 0.99),
        itl_p50_ms=percentile(itl, 0.5),
        itl_p99_ms=percentile(itl, 0.99),
        itl_max_ms=max(itl, default=float("nan")),
        e2e_p50_ms=percentile([timing.e2e_s * 1e3 for timing in good], 0.5),
        first_error=next((timing.error for timing in timings if timing.error), ""),
    )


def median_figures(rounds: Sequence[Figures]) -> dict[str, float | None]:
    """The median of each figure over rounds, None where there is none; errors are added up instead."""
    rows = [asdict(each) for each in rounds]
    names = [name for name in rows[0] if name not in ("num_errors", "first_error")]
    medians = {name: _rounded(median(row[name] for row in rows), 2) for name in names}
    return medians | {"num_errors": sum(row["num_errors"] for row in rows)}


def _rounded(value: float, digits: int) -> float | None:
    return round(float(value), digits) if isfinite(value) else None


def ratios(ours: Sequence[Figures], baseline: Sequence[Figures]) -> dict[str, float | None]:
    """Median over rounds of ours / baseline, round by round, so that a drift of the machine cancels out."""
    found: dict[str, float | None] = {}
    for name in ("output_tokens_per_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms"):
        pairs = [
            getattr(mine, name) / getattr(other, name)
            for mine, other in zip(ours, baseline, strict=True)
            if getattr(other, name)
        ]
        found[name] = _rounded(median(pairs), 3) if pairs else None
    return found
