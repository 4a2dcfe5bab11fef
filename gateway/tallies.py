"""Metrics that are cheap to add to from one thread: each token adds to several of them.

prometheus_client's own metrics take a lock and check labels at each call. These become its families when they are read.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry


class Tally(Collector):
    """Numbers that only grow and that their owner keeps. `read` returns one, or one for each value of `label`. An empty
    mapping is not shown. Give `name` without `_total`."""

    def __init__(
        self,
        name: str,
        help_text: str,
        registry: CollectorRegistry,
        read: Callable[[], int | Mapping[str, int]],
        label: str = "",
    ) -> None:
        self._name, self._help, self._read, self._label = name, help_text, read, label
        registry.register(self)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Called at every scrape."""
        counts = self._read()
        if isinstance(counts, int):
            return [CounterMetricFamily(self._name, self._help, value=counts)]

        family = CounterMetricFamily(self._name, self._help, labels=[self._label])
        for value, count in sorted(counts.items()):
            family.add_metric([value], count)
        return [family] if counts else []


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
