"""What `/metrics` shows: times of requests as clients feel them, outcomes, and what workers tell.

One registry per gateway, nothing global. What it does not know: HTTP, the numbers of workers (worker_metrics.py).
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from gateway.membership import Member
from gateway.slow_reader import BACKLOG, STALLED
from gateway.tallies import Spread, Tally
from gateway.worker_metrics import PREFIX, WorkerCollector

TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
FIRST_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
OWN_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
OUTCOMES = (
    "ok", "cancelled", "bad_request", "context_length_exceeded", "model_not_found", "overloaded", "unavailable",
    "worker_lost", "kv_not_delivered", "layout_mismatch", "wire_error", "internal_error",
)  # fmt: skip
STATUSES = ("200", "400", "401", "404", "405", "408", "413", "415", "429", "431", "500", "503")


class Metrics:
    """The gateway's numbers. `members` tells who serves now, `num_in_flight` how many prompts are being answered."""

    def __init__(self, members: Callable[[], Iterable[Member]], num_in_flight: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        self.time_to_first_token_s = Spread(
            PREFIX + "time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            FIRST_BUCKETS_S,
            registry,
        )
        self.inter_token_latency_s = Spread(
            PREFIX + "inter_token_latency_seconds",
            "Between two tokens of one choice, as they reach the gateway.",
            TOKEN_BUCKETS_S,
            registry,
        )
        self.e2e_request_latency_s = Spread(
            PREFIX + "e2e_request_latency_seconds",
            "From the arrival of a request to its last token.",
            REQUEST_BUCKETS_S,
            registry,
        )
        self.gateway_request_s = Spread(
            PREFIX + "gateway_request_seconds",
            "What the gateway adds before a request reaches its worker: from its arrival to its assignment.",
            OWN_BUCKETS_S,
            registry,
        )
        self.gateway_first_token_s = Spread(
            PREFIX + "gateway_first_token_seconds",
            "What the gateway adds after the first token of a stream: from its arrival to its chunk being written.",
            OWN_BUCKETS_S,
            registry,
        )
        self.requests = Counter(
            PREFIX + "requests",
            "Generation requests that ended, by outcome: ok, cancelled, or the code of the error.",
            ["outcome"],
            registry=registry,
        )
        self.prompt_tokens = Tally(PREFIX + "prompt_tokens", "Prompt tokens accepted.", registry)
        self.generation_tokens = Tally(PREFIX + "generation_tokens", "Tokens of answers, as they arrive.", registry)
        self.slow_readers_cut = Counter(
            PREFIX + "slow_readers_cut",
            "Connections ended because their client did not read: stalled, or backlog (too many tokens waited).",
            ["reason"],
            registry=registry,
        )
        self.http_responses = Counter(
            PREFIX + "http_responses", "Responses by HTTP status, of any path.", ["status"], registry=registry
        )
        for counter, values in (
            (self.requests, OUTCOMES),
            (self.slow_readers_cut, (STALLED, BACKLOG)),
            (self.http_responses, STATUSES),
        ):
            for value in values:  # there from the start: the first of a kind is growth, too
                counter.labels(value)
        self.http_connections = Gauge(PREFIX + "http_connections", "Open connections of clients.", registry=registry)
        in_flight = Gauge(PREFIX + "requests_in_flight", "Prompts being answered.", registry=registry)
        in_flight.set_function(num_in_flight)
        registry.register(WorkerCollector(members))
        ProcessCollector(registry=registry)  # process_cpu_seconds_total and the like, of the gateway itself

    def count_response(self, status: int) -> None:
        """A response with this HTTP status has begun."""
        self.http_responses.labels(str(status)).inc()

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
