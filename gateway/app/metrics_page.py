"""What `/metrics` tells of the workers: their load, their own counters, and what the gateway counts of them.

Workers name their own counters (see transfer/): each gets its public name, type and help here.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.generation.tallies import PREFIX, Tally
from gateway.routing.control import Control
from gateway.routing.members import Member
from protocol.worker_facts import TIME_EDGES_S

LABELS = ["worker", "role"]
KV_STATES = "total free cached owned reserved quarantined".split()
Family = CounterMetricFamily | GaugeMetricFamily
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


@dataclass(frozen=True)
class Shown:
    """How one number of a worker is shown. `name` has no prefix and no `_total`; `label` is (name, value)."""

    name: str
    help: str
    is_gauge: bool = False
    label: tuple[str, str] | None = None


EXACT = {
    "frames": Shown("kv_transfer_frames", "Frames sent by a prefill worker, or landed in pages of a decode worker."),
    "bytes": Shown("kv_transfer_bytes", "KV bytes sent by a prefill worker, or landed in pages of a decode worker."),
    "transfers_now": Shown("kv_transfers", "Prompts whose KV a prefill worker is sending.", True),
    "frames_waiting_now": Shown("kv_transfer_waiting_frames", "Frames that wait for a receiver's credit.", True),
    "bytes_in_flight_now": Shown("kv_transfer_in_flight_bytes", "KV bytes sent and not yet acknowledged.", True),
    "spills": Shown("kv_spills", "Choices whose KV a worker moved to host memory, because they were preempted."),
    "spilled_now": Shown("spilled_requests", "Choices whose KV is in host memory, until there is room again.", True),
    "idle_launches": Shown("idle_launches", "Launches without tokens, because other ranks of the group had some."),
    "spec_plain_launches": Shown("spec_plain_launches", "Launches of a worker with a draft in which no row had one."),
    "reservations_now": Shown("reservations", "Prompts for which a decode worker keeps pages to receive KV.", True),
}
TIMES = {  # see worker/requests.py
    "queue_time": (
        "request_queue_time_seconds",
        "How long requests wait at a worker: for pages and credit (decode), for their turn (prefill, unified).",
    ),
    "prefill_time": ("request_prefill_time_seconds", "From the first chunk of a prompt to its first token."),
    "kv_transfer_time": ("kv_transfer_seconds", "From the first frame of a prompt's KV to the last one."),
    "kv_handover_time": (
        "kv_handover_seconds",
        "From the end of a prompt's computation until a prefill worker hears that decode has all of its KV.",
    ),
}


# By the beginning of the counter's name; the rest is the label's value: (beginning, name, label, help).
BY_REST = (
    ("rejected_", "kv_transfer_rejected_frames", "reason", "Frames that a decode worker refused, by reason."),
    ("spec_proposed_", "spec_proposed_tokens", "position", "Tokens that a draft proposed and a launch verified."),
    (
        "spec_accepted_",
        "spec_accepted_tokens",
        "position",
        "Tokens that a draft proposed and a launch kept, by position.",
    ),
    ("transfers_", "kv_transfers_ended", "outcome", "Prompts whose KV a prefill worker sent, by outcome."),
    ("reservations_", "reservations_ended", "outcome", "Reservations of a decode worker that ended, by outcome."),
)


def shown(name: str) -> Shown:
    """How a worker's counter `name` is shown. An unknown counter keeps its name."""
    if name in EXACT:
        return EXACT[name]
    if name.endswith("_now"):
        base = name.removesuffix("_now")
        return Shown(f"worker_{base}", f"{_words(base)}, at present, as the worker counts.", True)
    for start, public, label, text in BY_REST:
        if name.startswith(start):
            return Shown(public, text, label=(label, name.removeprefix(start)))
    base = name.removesuffix("_total")
    return Shown(f"worker_{base}", f"{_words(base)}, since the worker's start, as it counts.")


class WorkerCollector(Collector):
    """Each worker's load, from its last heartbeat."""

    def __init__(self, members: Callable[[], Iterable[Member]]) -> None:
        self._members = members

    def collect(self) -> Iterable[Family | HistogramMetricFamily]:
        """Called at every scrape."""
        members = list(self._members())
        return [*_loads(members), _places(members), *_times(members), *_counts(members)]


def _loads(members: Iterable[Member]) -> list[Family]:
    """The numbers that every worker has."""
    running = GaugeMetricFamily(
        PREFIX + "running_requests", "Choices being decoded, or prompts being prefilled.", labels=LABELS
    )
    waiting = GaugeMetricFamily(
        PREFIX + "waiting_requests", "Requests that wait for pages, for credit or for their turn.", labels=LABELS
    )
    queued = GaugeMetricFamily(
        PREFIX + "queued_prompt_tokens", "Prompt tokens yet to be prefilled at a worker.", labels=LABELS
    )
    usage = GaugeMetricFamily(PREFIX + "kv_usage_ratio", "Share of KV pages not free or cached.", labels=LABELS)
    pages = GaugeMetricFamily(PREFIX + "kv_pages", "KV pages by state.", labels=[*LABELS, "state"])
    launches = CounterMetricFamily(PREFIX + "launches", "Batches launched by a worker.", labels=LABELS)

    for member in members:
        stats, kv, labels = member.stats, member.stats.kv_pages, _labels(member)
        running.add_metric(labels, stats.running)
        waiting.add_metric(labels, stats.waiting)
        queued.add_metric(labels, stats.queued_prompt_tokens)
        usage.add_metric(labels, (kv.owned + kv.reserved + kv.quarantined) / max(1, kv.total))
        launches.add_metric(labels, stats.num_launches)
        for state in KV_STATES:
            pages.add_metric([*labels, state], getattr(kv, state))
    return [running, waiting, queued, usage, pages, launches]


def _places(members: Iterable[Member]) -> GaugeMetricFamily:
    """Where each rank stands. Joined to other numbers by `worker`, it sums them by group."""
    labels = ["group", "epoch", "rank", "size"]
    family = GaugeMetricFamily(
        PREFIX + "group_rank_info", "1 for each worker that is a rank of a group.", labels=[*LABELS, *labels]
    )
    for member in members:
        if (place := member.place) is not None:
            family.add_metric([*_labels(member), *(str(getattr(place, label)) for label in labels)], 1)
    return family


def _times(members: Iterable[Member]) -> list[HistogramMetricFamily]:
    """How long requests spend in each phase of a worker."""
    edges = [*map(str, TIME_EDGES_S), "+Inf"]
    families = []
    for phase, (public, text) in TIMES.items():
        family = HistogramMetricFamily(PREFIX + public, text, labels=LABELS)
        for member in members:
            if (spread := member.stats.times.get(phase)) is not None:
                buckets = list(zip(edges, accumulate(spread.counts), strict=True))
                family.add_metric(_labels(member), buckets, spread.seconds)
        families.append(family)
    return families


def _counts(members: Iterable[Member]) -> list[Family]:
    """The workers' other counters."""
    families: dict[str, Family] = {}
    for member in members:
        for name, value in sorted(member.stats.counters.items()):
            if not _NAME.match(name):
                continue
            how = shown(name)
            labels = _labels(member) if how.label is None else [*_labels(member), how.label[1]]
            families.setdefault(how.name, _family(how)).add_metric(labels, value)
    return list(families.values())


def _family(how: Shown) -> Family:
    labels = LABELS if how.label is None else [*LABELS, how.label[0]]
    kind = GaugeMetricFamily if how.is_gauge else CounterMetricFamily
    return kind(PREFIX + how.name, how.help, labels=labels)


def _labels(member: Member) -> list[str]:
    return [member.key.worker_id, str(member.role)]


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def add_control(registry: CollectorRegistry, control: Control, refused: Callable[[], Mapping[str, int]]) -> None:
    """Adds what `control` and its workers count. `refused`: connections that its socket has refused, by reason; empty
    without keys."""
    requests, dispatch = control.dispatch.requests, control.dispatch
    in_flight = Gauge(PREFIX + "requests_in_flight", "Prompts being answered.", registry=registry)
    in_flight.set_function(lambda: len(requests))
    registry.register(WorkerCollector(lambda: control.membership.members))

    def tally(name: str, text: str, read: Callable[[], int | Mapping[str, int]], label: str = "") -> None:
        Tally(PREFIX + name, text, registry, read, label)

    tally("request_attempts", "Attempts: requests given to workers, with every retry.", lambda: requests.num_attempts)
    text = "Attempts after the first, by the code of the error that ended the one before."
    tally("request_retries", text, lambda: dispatch.retries.counts, "reason")
    text = "Worker processes that became members: more than there are workers means restarts."
    tally("workers_joined", text, lambda: control.joined, "role")
    text = "Worker processes that were declared lost, or ended by themselves."
    tally("workers_lost", text, lambda: control.membership.num_lost)
    text = "Worker processes that were told to end, and left in good order."
    tally("workers_left", text, lambda: control.membership.num_left)
    tally("deliveries_dropped", "Tokens and failures of attempts that are over.", lambda: requests.num_dropped)
    text = "Messages that were invalid or came from a process that is not a member, by kind."
    tally("messages_refused", text, lambda: control.refusals.counts, "reason")
    tally("connections_refused", "Connections to the control socket that were refused, by reason.", refused, "reason")
