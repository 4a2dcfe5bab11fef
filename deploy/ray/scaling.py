"""How many workers of a role the load needs: a policy for Serve's autoscaling, off unless the file names it. Pure.

    gateway --/workers, /metrics, each second--> gateway's holder --Welcome--> worker's holder
        --record_autoscaling_stats--> Serve, which averages them --> ByLoad --> the wanted count

    autoscaling_config:
      min_replicas: 1
      max_replicas: 4
      policy: {policy_function: "deploy.ray.scaling:ByLoad", policy_kwargs: {ttft_ms: 500}}

Serve keeps the count within its bounds, and waits `upscale_delay_s` and `downscale_delay_s` before it follows.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.options import ScalingSettings

FIGURES: Final = ("kv", "queued_tokens", "ttft_ms", "itl_ms")
KV: Final = ScalingSettings.target_kv_percent / 100  # aims, unless the file has others
QUEUED_TOKENS: Final = ScalingSettings.target_queued_tokens
CALM: Final = 0.7  # below this share of its aim, a latency allows a worker less
WINDOW_S: Final = 30.0  # latencies are those of tokens that came in it
_BUCKET: Final = re.compile(r'^(baton_\w+_seconds)_bucket\{le="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)
_LATENCIES: Final = {
    "ttft_ms": "baton_time_to_first_token_seconds",
    "itl_ms": "baton_inter_token_latency_seconds",
}
Counts = Mapping[str, Sequence[tuple[float, float]]]  # of a histogram: (upper bound in seconds, how many are below)


class ByLoad:
    """What each figure should be at most; None: that figure does not count.

    `kv`: the share of a worker's KV pages that requests hold. `queued_tokens`: prompt tokens that wait at a worker.
    `ttft_ms`, `itl_ms`: the 90th percentile of all requests, in milliseconds. Give `ttft_ms` to prefill workers,
    `itl_ms` to decode workers. ValueError for another value.
    """

    def __init__(
        self,
        kv: float | None = KV,
        queued_tokens: float | None = QUEUED_TOKENS,
        ttft_ms: float | None = None,
        itl_ms: float | None = None,
    ) -> None:
        self.aims = dict(zip(FIGURES, (kv, queued_tokens, ttft_ms, itl_ms), strict=True))
        for name, aim in self.aims.items():
            if aim is not None and (isinstance(aim, bool) or not isinstance(aim, int | float) or not 0 < aim < 1e9):
                raise ValueError(f"policy_kwargs: {name} is {aim!r}, expected a number above 0, or null")

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Called by Serve for one deployment."""
        metrics = context.aggregated_metrics or {}
        told = {name: list(metrics.get(name, {}).values()) for name in FIGURES}
        return wanted(told, context.target_num_replicas, self.aims), {}


def wanted(told: Mapping[str, Sequence[float]], current: int, aims: Mapping[str, float | None]) -> int:
    """The count for which each figure is at its aim at most. `told`: each figure of all workers that tell it.

    What workers share out among them, KV and queued tokens, is divided by its aim: two workers of 0.6 need two of 0.8.
    A latency above its aim takes one worker more than there are, one near its aim keeps their number, and a lower one
    takes one away. While a worker says nothing, none is taken away. Without any figure the number stays.
    """
    needs = []
    for name in ("kv", "queued_tokens"):
        aim = aims[name]
        if aim is not None and told[name]:
            needs.append(math.ceil(sum(told[name]) / aim - 1e-9))
    for name in _LATENCIES:
        aim = aims[name]
        if aim is not None and told[name]:
            share = max(told[name]) / aim
            needs.append(current + 1 if share > 1 else current if share > CALM else current - 1)
    if not needs:
        return current
    someone_is_silent = max(len(figures) for figures in told.values()) < current
    return max(1, *needs, current if someone_is_silent else 1)


def figures_of(rows: Sequence[Mapping[str, Any]], latencies: Mapping[str, float], name: str) -> dict[str, float]:
    """The figures that one worker tells, from the rows of /workers: of a group, the share of its fullest rank, and
    all that waits at its ranks. Empty if it is not there."""
    mine = [row for row in rows if row["id"] == name or str(row["id"]).startswith(f"{name}.")]
    if not mine:
        return {}
    pages = [row["kv_pages"] for row in mine]
    shares = [1 - (kv["free"] + kv["cached"]) / kv["total"] for kv in pages if kv["total"]]
    queued = sum(row["queued_prompt_tokens"] for row in mine)
    return {"kv": max(shares, default=0.0), "queued_tokens": float(queued), **latencies}


@dataclass
class Latencies:
    """TTFT and ITL of the last WINDOW_S, from pages of /metrics, whose histograms count from the gateway's start."""

    _pages: list[tuple[float, Counts]] = field(default_factory=list)

    def take(self, page: str, now: float) -> dict[str, float]:
        """The 90th percentiles in ms, by their names in FIGURES, of what came since the oldest page of the window.
        None of a latency that nothing had. A gateway that was started anew counts from nothing."""
        counts = _counts(page)
        if self._pages and _total(counts) < _total(self._pages[-1][1]):
            self._pages.clear()
        self._pages.append((now, counts))
        while now - self._pages[0][0] > WINDOW_S:
            self._pages.pop(0)
        before = self._pages[0][1]
        figures = {name: _percentile(before.get(metric, ()), counts[metric]) for name, metric in _LATENCIES.items()}
        return {name: seconds * 1e3 for name, seconds in figures.items() if seconds is not None}


def _counts(page: str) -> Counts:
    counts: dict[str, list[tuple[float, float]]] = {metric: [] for metric in _LATENCIES.values()}
    for metric, bound, count in _BUCKET.findall(page):
        if metric in counts:
            counts[metric].append((float(bound), float(count)))
    return counts


def _total(counts: Counts) -> float:
    return sum(count for buckets in counts.values() for _, count in buckets[-1:])


def _percentile(before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]]) -> float | None:
    """The upper bound of the bucket that holds the 90th percentile of what came between; its lower bound if it is the
    last one, which has no upper bound."""
    earlier = dict(before)
    grown = [(bound, count - earlier.get(bound, 0.0)) for bound, count in after]
    if not grown or grown[-1][1] <= 0:
        return None
    index = next(index for index, (_, count) in enumerate(grown) if count >= 0.9 * grown[-1][1])
    bound = grown[index][0]
    return bound if math.isfinite(bound) else (grown[index - 1][0] if index else 0.0)
