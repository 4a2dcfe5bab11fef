"""Metrics of the workers' connections: retries, lost workers, refused and late messages."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from gateway.control import Control
from gateway.tallies import Tally
from gateway.worker_metrics import PREFIX


def add_control(registry: CollectorRegistry, control: Control, refused: Callable[[], Mapping[str, int]]) -> None:
    """Adds what `control` counts. `refused`: connections that its socket has refused, by reason; empty without keys."""
    requests, dispatch = control.dispatch.requests, control.dispatch

    def show(name: str, text: str, read: Callable[[], int | Mapping[str, int]], label: str = "") -> None:
        Tally(PREFIX + name, text, registry, read, label)

    show(
        "request_attempts",
        "Attempts: requests given to workers, with every retry.",
        lambda: requests.num_attempts,
    )
    show(
        "request_retries",
        "Attempts after the first, by the code of the error that ended the one before.",
        lambda: dispatch.retries,
        "reason",
    )
    show(
        "workers_joined",
        "Worker processes that became members: more than there are workers means restarts.",
        lambda: control.joined,
        "role",
    )
    show(
        "workers_lost",
        "Worker processes that left or were declared lost.",
        lambda: control.membership.num_lost,
    )
    show(
        "deliveries_dropped",
        "Tokens and failures of attempts that are over.",
        lambda: requests.num_dropped,
    )
    show(
        "messages_refused",
        "Messages that were invalid or came from a process that is not a member, by kind.",
        lambda: control.refusals.counts,
        "reason",
    )
    show("connections_refused", "Connections to the control socket that were refused, by reason.", refused, "reason")
