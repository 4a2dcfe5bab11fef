"""The metrics of `/metrics`: latencies as clients see them, outcomes, and what the workers' connections count.

Each gateway has one registry of its own. Each token adds to several metrics, and prometheus_client's own take a lock
and check labels at each call. `Tally` and `Spread` are cheap to add to from one thread, and become families of
prometheus_client when they are read. Workers name their own counters (see transfer/): each gets its public name, type
and help here.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.control import Control
from gateway.http_errors import FAULTS
from gateway.http_protocol import BACKLOG, STALLED
from gateway.members import Member
from protocol.messages_gateway import FinishReason
from protocol.worker_facts import TIME_EDGES_S

PREFIX = "baton_"
LABELS = ["worker", "role"]
KV_STATES = "total free cached owned reserved quarantined".split()
Family = CounterMetricFamily | GaugeMetricFamily
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")

TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
FIRST_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
OWN_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
FINISHES = (str(FinishReason.STOP), str(FinishReason.LENGTH))
OUTCOMES = (
    "ok", "cancelled", "bad_request", "context_length_exceeded", "model_not_found", "overloaded", "unavailable",
    "worker_lost", "worker_left", "retracted", "kv_not_delivered", "layout_mismatch", "wire_error", "launch_failed",
    "internal_error",
)  # fmt: skip
STATUSES = ("200", *map(str, FAULTS))


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


# ---- the workers' part: their load and their own counters ----


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
    "spills": Shown("kv_spills", "Choices whose KV a worker moved to host memory, because they had to give way."),
    "spilled_now": Shown("spilled_requests", "Choices whose KV is in host memory, until there is room again.", True),
    "idle_launches": Shown("idle_launches", "Launches without tokens, because other ranks of the group had some."),
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


# ---- all of them ----


class Metrics:
    """The gateway's metrics, each labelled with `model_name`. `add_control` adds what its workers' side counts."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.registry = registry = CollectorRegistry()

        self.time_to_first_token_s = self._spread(
            "time_to_first_token_seconds", "From the arrival of a request to its first token.", FIRST_BUCKETS_S
        )
        self.inter_token_latency_s = self._spread(
            "inter_token_latency_seconds",
            "Between two tokens of one choice, as they reach the gateway.",
            TOKEN_BUCKETS_S,
        )
        self.e2e_request_latency_s = self._spread(
            "e2e_request_latency_seconds", "From the arrival of a request to its last token.", REQUEST_BUCKETS_S
        )
        self.decode_time_s = self._spread(
            "request_decode_time_seconds", "From the first token of a choice to its last.", REQUEST_BUCKETS_S
        )
        self.time_per_output_token_s = self._spread(
            "request_time_per_output_token_seconds",
            "Of each choice, the mean time between two of its tokens.",
            TOKEN_BUCKETS_S,
        )
        self.prompt_length = self._spread("request_prompt_tokens", "Length of each prompt in tokens.", LENGTH_BUCKETS)
        self.output_length = self._spread(
            "request_generation_tokens", "Length of each choice that finished in tokens.", LENGTH_BUCKETS
        )
        self.gateway_request_s = self._spread(
            "gateway_request_seconds",
            "What the gateway adds before a request reaches its worker: from its arrival to its assignment.",
            OWN_BUCKETS_S,
        )
        self.gateway_first_token_s = self._spread(
            "gateway_first_token_seconds",
            "What the gateway adds after the first token of a stream: from its arrival to its chunk being written.",
            OWN_BUCKETS_S,
        )

        self.requests = self._counter(
            "requests",
            "Generation requests that ended, by outcome: ok, cancelled, or the code of the error.",
            "outcome",
            OUTCOMES,
        )
        self.finished = self._counter(
            "request_success",
            "Choices that finished, by reason: stop (EOS, a stop token or string) or length.",
            "finished_reason",
            FINISHES,
        )
        self.slow_readers_cut = self._counter(
            "slow_readers_cut",
            "Connections ended because their client did not read: stalled, or backlog (too many tokens waited).",
            "reason",
            (STALLED, BACKLOG),
        )
        self.http_responses = self._counter(
            "http_responses", "Responses by HTTP status, of any path.", "status", STATUSES
        )

        self.num_prompt_tokens = 0
        Tally(PREFIX + "prompt_tokens", "Prompt tokens accepted.", registry, lambda: self.num_prompt_tokens)
        self.num_cached_tokens = 0
        Tally(
            PREFIX + "cached_prompt_tokens",
            "Prompt tokens not computed, because a worker had their KV; counted when a request ends.",
            registry,
            lambda: self.num_cached_tokens,
        )
        self.num_generation_tokens = 0
        Tally(
            PREFIX + "generation_tokens",
            "Tokens of answers, as they arrive.",
            registry,
            lambda: self.num_generation_tokens,
        )

        self.http_connections = Gauge(PREFIX + "http_connections", "Open connections of clients.", registry=registry)
        ProcessCollector(registry=registry)  # process_cpu_seconds_total and more, of the gateway process

    def _spread(self, name: str, help_text: str, edges: Sequence[float]) -> Spread:
        return Spread(PREFIX + name, help_text, edges, self.registry)

    def _counter(self, name: str, help_text: str, label: str, values: Iterable[str]) -> Counter:
        counter = Counter(PREFIX + name, help_text, [label], registry=self.registry)
        for value in values:  # shown as 0 from the start, so that the first increase is seen as growth
            counter.labels(value)
        return counter

    def count_response(self, status: int) -> None:
        """Counts a response that has begun."""
        self.http_responses.labels(str(status)).inc()

    def render(self) -> bytes:
        """The page in Prometheus's text format."""
        return generate_latest(self)

    def collect(self) -> Iterable[Metric]:
        """All metrics, with Baton's own labelled by model. Leaves out the `_created` samples: they double the page and
        nobody asks for them."""
        for family in self.registry.collect():
            named = {"model_name": self._model_name} if family.name.startswith(PREFIX) else {}
            family.samples = [
                sample._replace(labels={**named, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family


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
