"""What `/metrics` shows of retries, of workers that were lost, and of messages that nobody waited for.

What it does not know: who counts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.worker_metrics import PREFIX


@dataclass(frozen=True)
class ControlCounts:
    """Monotonic. `retries` by the code of what ended the attempt before."""

    retries: Mapping[str, int]
    workers_lost: int
    deliveries_dropped: int
    messages_refused: int


class ControlCollector(Collector):
    """Read at every scrape."""

    def __init__(self, counts: Callable[[], ControlCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[CounterMetricFamily]:
        """One family for each count."""
        counts = self._counts()
        retries = CounterMetricFamily(
            PREFIX + "request_retries",
            "Attempts after the first, by the code of what ended the one before.",
            labels=["reason"],
        )
        for reason, count in sorted(counts.retries.items()):
            retries.add_metric([reason], count)
        rest = (
            ("workers_lost", "Worker processes that left or were declared lost.", counts.workers_lost),
            ("deliveries_dropped", "Tokens and failures of attempts that are over.", counts.deliveries_dropped),
            ("messages_refused", "Messages that made no sense or came from who is no member.", counts.messages_refused),
        )
        return [retries, *(CounterMetricFamily(PREFIX + name, text, value=value) for name, text, value in rest)]
