"""Metrics of the workers' connections: retries, lost workers, refused and late messages."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.worker_metrics import PREFIX


@dataclass(frozen=True)
class ControlCounts:
    """Counts that only grow. `retries`: by the code of the error that ended the attempt before. `workers_joined`: by
    role. `messages_refused`: by kind."""

    attempts: int
    retries: Mapping[str, int]
    workers_joined: Mapping[str, int]
    workers_lost: int
    deliveries_dropped: int
    messages_refused: Mapping[str, int]


class ControlCollector(Collector):
    """The families of ControlCounts."""

    def __init__(self, counts: Callable[[], ControlCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Called at every scrape."""
        counts = self._counts()

        plain = (
            ("request_attempts", "Attempts: requests given to workers, with every retry.", counts.attempts),
            ("workers_lost", "Worker processes that left or were declared lost.", counts.workers_lost),
            ("deliveries_dropped", "Tokens and failures of attempts that are over.", counts.deliveries_dropped),
        )
        labelled = (
            (
                "request_retries",
                "Attempts after the first, by the code of the error that ended the one before.",
                "reason",
                counts.retries,
            ),
            (
                "workers_joined",
                "Worker processes that became members: more than there are workers means restarts.",
                "role",
                counts.workers_joined,
            ),
            (
                "messages_refused",
                "Messages that were invalid or came from a process that is not a member, by kind.",
                "reason",
                counts.messages_refused,
            ),
        )

        families = [CounterMetricFamily(PREFIX + name, text, value=value) for name, text, value in plain]
        for name, text, label, by_label in labelled:
            family = CounterMetricFamily(PREFIX + name, text, labels=[label])
            for value, count in sorted(by_label.items()):
                family.add_metric([value], count)
            families.append(family)
        return families


class ConnectionCollector(Collector):
    """Refused connections to the socket that workers dial. Empty without keys."""

    def __init__(self, refused: Callable[[], Mapping[str, int]]) -> None:
        self._refused = refused

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Called at every scrape."""
        refused = self._refused()
        text = "Connections to the control socket that were refused, by reason."
        family = CounterMetricFamily(PREFIX + "connections_refused", text, labels=["reason"])
        for reason, count in sorted(refused.items()):
            family.add_metric([reason], count)
        return [family] if refused else []
