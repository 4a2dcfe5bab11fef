"""The metrics of a gateway's own requests: latencies as clients see them, outcomes, and what it has counted.

Each gateway has one registry of its own. Each token adds to several metrics, and prometheus_client's own take a lock
and check labels at each call. `Tally` and `Spread` are cheap to add to from one thread, and become families of
prometheus_client when they are read.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.http.errors import FAULTS
from gateway.http.protocol import BACKLOG, STALLED
from gateway.words.events import Reason
from protocol.messages_gateway import FinishReason

PREFIX = "baton_"

TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
FIRST_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
OWN_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
FINISHES = (str(FinishReason.STOP), str(FinishReason.LENGTH), str(Reason.CALLS))
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
            "Choices that finished, by reason: stop (EOS, a stop token or string), length, calls (stop behind calls).",
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
