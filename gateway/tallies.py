"""Metrics that are cheap to add to from one thread: each token adds to several of them.

prometheus_client's own metrics take a lock and check labels at each call. These become its families when they are read.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry


class Tally(Collector):
    """A number that only grows. Give `name` without `_total`."""

    def __init__(self, name: str, help_text: str, registry: CollectorRegistry) -> None:
        self._name, self._help = name, help_text
        self.value = 0
        registry.register(self)

    def add(self, amount: int) -> None:
        """Adds `amount`."""
        self.value += amount

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Called at every scrape."""
        family = CounterMetricFamily(self._name, self._help)
        family.add_metric([], self.value)
        return [family]


class Spread(Collector):
    """A histogram. Each bucket includes its upper edge; the last has no edge."""

    def __init__(self, name: str, help_text: str, edges: Sequence[float], registry: CollectorRegistry) -> None:
        self._name, self._help, self._edges = name, help_text, tuple(map(float, edges))
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value` `times` times."""
        self._counts[bisect_left(self._edges, value)] += times
        self._sum += value * times

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Called at every scrape."""
        edges = [*map(str, self._edges), "+Inf"]
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], list(zip(edges, accumulate(self._counts), strict=True)), self._sum)
        return [family]
