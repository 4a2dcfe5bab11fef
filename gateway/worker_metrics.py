"""The workers' part of `/metrics`: their load and their own counters.

Workers name their counters themselves (see transfer/). Each gets its public name, type and help here.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.membership import Member
from protocol.messages_gateway import TIME_EDGES_S

PREFIX = "baton_"
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
        return [*_loads(members), *_times(members), *_counts(members)]


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
        stats, kv, who = member.stats, member.stats.kv_pages, _who(member)
        running.add_metric(who, stats.running)
        waiting.add_metric(who, stats.waiting)
        queued.add_metric(who, stats.queued_prompt_tokens)
        usage.add_metric(who, (kv.owned + kv.reserved + kv.quarantined) / max(1, kv.total))
        launches.add_metric(who, stats.num_launches)
        for state in KV_STATES:
            pages.add_metric([*who, state], getattr(kv, state))
    return [running, waiting, queued, usage, pages, launches]


def _times(members: Iterable[Member]) -> list[HistogramMetricFamily]:
    """How long requests spend in each phase of a worker."""
    edges = [*map(str, TIME_EDGES_S), "+Inf"]
    families = []
    for phase, (public, text) in TIMES.items():
        family = HistogramMetricFamily(PREFIX + public, text, labels=LABELS)
        for member in members:
            if (spread := member.stats.times.get(phase)) is not None:
                buckets = list(zip(edges, accumulate(spread.counts), strict=True))
                family.add_metric(_who(member), buckets, spread.seconds)
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
            labels = _who(member) if how.label is None else [*_who(member), how.label[1]]
            families.setdefault(how.name, _family(how)).add_metric(labels, value)
    return list(families.values())


def _family(how: Shown) -> Family:
    labels = LABELS if how.label is None else [*LABELS, how.label[0]]
    kind = GaugeMetricFamily if how.is_gauge else CounterMetricFamily
    return kind(PREFIX + how.name, how.help, labels=labels)


def _who(member: Member) -> list[str]:
    return [member.key.worker_id, str(member.role)]


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()
