"""What is measured of one client request: latencies for the metrics, stamps for its time line."""

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.generation.tallies import Metrics
from gateway.routing.attempts import GATEWAY
from gateway.words.prompt import Prompt
from protocol.worker_facts import Stamp
from runtime.clock import Clock


class Times:
    """What is measured of one client request: latencies for the metrics, stamps for the time line. In seconds of
    `clock`."""

    def __init__(self, clock: Clock, metrics: Metrics, received_at: float, with_timeline: bool = False) -> None:
        self.with_timeline = with_timeline  # the client asks for it
        self._clock, self._metrics = clock, metrics
        self._received_at = received_at
        self._stamps: list[Stamp] = []
        self._first_token_at: dict[int, float] = {}  # by choice, the earliest first
        self._last_token_at: dict[int, float] = {}  # by choice
        self.stamp("received", received_at)

    @property
    def seconds(self) -> float:
        """Since the request arrived."""
        return self._clock.now() - self._received_at

    def stamp(self, name: str, at: float | None = None) -> None:
        """Adds a stamp to the time line."""
        self._stamps.append(Stamp(name, self._clock.now() if at is None else at, GATEWAY))

    def assigned(self, prompts: Sequence[Prompt]) -> None:
        """Every prompt is at its worker."""
        for prompt in prompts:
            self._metrics.num_prompt_tokens += len(prompt.token_ids)
            self._metrics.prompt_length.observe(len(prompt.token_ids))
        self._metrics.gateway_request_s.observe(self.seconds)

    def tokens(self, index: int, num_tokens: int) -> None:
        """A choice got tokens. Those that arrive together share the time since the previous ones equally."""
        if not num_tokens:
            return
        now, metrics = self._clock.now(), self._metrics
        metrics.num_generation_tokens += num_tokens

        last, self._last_token_at[index] = self._last_token_at.get(index), now
        if last is not None:
            metrics.inter_token_latency_s.observe((now - last) / num_tokens, num_tokens)
            return

        self._first_token_at[index] = now
        if len(self._first_token_at) == 1:
            self.stamp("first token out", now)
            metrics.time_to_first_token_s.observe(now - self._received_at)

    def first_event_written(self) -> None:
        """The first event was written to the connection."""
        if self._first_token_at:
            first = next(iter(self._first_token_at.values()))
            self._metrics.gateway_first_token_s.observe(self._clock.now() - first)

    def choice_ended(self, index: int, reason: str, num_tokens: int) -> None:
        """A choice has all its tokens."""
        metrics = self._metrics
        metrics.finished.labels(reason).inc()
        metrics.output_length.observe(num_tokens)
        if index not in self._first_token_at:
            return

        seconds = self._last_token_at[index] - self._first_token_at[index]
        metrics.decode_time_s.observe(seconds)
        if num_tokens > 1:
            metrics.time_per_output_token_s.observe(seconds / (num_tokens - 1))

    def request_ended(self, outcome: str, num_cached: int) -> None:
        """The request has ended with this outcome of the metrics. `num_cached` of its prompt tokens were cached."""
        self._metrics.num_cached_tokens += num_cached
        self._metrics.requests.labels(outcome).inc()
        if outcome == "ok":
            self._metrics.e2e_request_latency_s.observe(self.seconds)

    def timeline(self, of_workers: Iterable[Stamp]) -> list[dict[str, Any]] | None:
        """All stamps in order, in milliseconds since the request arrived; None unless the client asked for them."""
        if not self.with_timeline:
            return None
        stamps = dict.fromkeys((*self._stamps, *of_workers))  # two workers may report the same moment
        return [
            {"name": moment.name, "at_ms": round((moment.at - self._received_at) * 1e3, 3), "worker": moment.worker_id}
            for moment in sorted(stamps, key=lambda moment: moment.at)
        ]
