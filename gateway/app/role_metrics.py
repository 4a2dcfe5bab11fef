"""Metrics of roles: how many workers get requests, for how long there was none, and how many were started again."""

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.generation.tallies import PREFIX, Tally
from gateway.routing.control import Control
from protocol.messages_gateway import Role
from runtime.clock import Clock
from runtime.supervision import STATES


class RoleCollector(Collector):
    """What is there of each role at present."""

    def __init__(self, control: Control, clock: Clock) -> None:
        self._control, self._clock = control, clock

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Called at every scrape."""
        workers = GaugeMetricFamily(PREFIX + "workers", "Workers that get new requests.", labels=["role"])
        ready = Counter(member.role for member in self._control.membership.ready)
        for role in Role:
            workers.add_metric([str(role)], ready[role])

        text = "For how long no worker of a role gets requests, though there was one; 0 if one does."
        without = GaugeMetricFamily(PREFIX + "role_without_worker_seconds", text, labels=["role"])
        for role, seconds in self._control.presence.seconds_without(self._clock.now()).items():
            without.add_metric([str(role)], seconds)

        text = "Workers that the launcher keeps alive, groups counted once, by what it does with them."
        kept = GaugeMetricFamily(PREFIX + "supervised_workers", text, labels=["role", "state"])
        units = self._control.presence.units.values()
        count = Counter((news.role, news.state) for news in units)
        for role in sorted({news.role for news in units}):
            for state in STATES:
                kept.add_metric([str(role), state], count[role, state])
        return [workers, without, kept]


def add_roles(registry: CollectorRegistry, control: Control, clock: Clock) -> None:
    """Adds what `control` knows of the workers of each role."""
    registry.register(RoleCollector(control, clock))
    text = "Workers that came back as another process: each was started again once."
    Tally(PREFIX + "worker_restarts", text, registry, lambda: control.presence.restarts, "role")
