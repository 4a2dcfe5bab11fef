"""A request on a worker: its choices, chunks and stamps, its tokens, and the messages about it.

The worker's loop sends and clears the messages; tests read them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from protocol.errors import BatonError
from protocol.grammar import grammar_fault
from protocol.logprobs import Logprobs
from protocol.messages_gateway import (
    Assign,
    ChoiceTokens,
    FinishReason,
    Preempted,
    PromptLogprobs,
    RequestFailed,
    ToGateway,
    Tokens,
    WorkerAddress,
)
from protocol.messages_handoff import ToDecode, ToPrefill
from protocol.prefixes import packed
from protocol.worker_facts import TIME_EDGES_S, Stamp, TimeSpread, WorkerStats
from runtime.clock import Clock
from scheduler.planning.kv_manager import CacheKey
from scheduler.planning.launched import Launched
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req, replay_fault, request_fault, transfer_fault

Key = tuple[str | int, int]  # the two numbers or names by which its sender names a request


@dataclass(eq=False)
class Assigned:
    """A request on a worker. Roles extend it with their own progress. `reqs` are the choices, in order."""

    assign: Assign
    reqs: tuple[Req, ...] = field(init=False)
    stamps: list[Stamp] = field(init=False, default_factory=list)  # for the client, if it asked for a time line
    num_cached: int = field(init=False, default=0)  # prompt tokens whose KV was in the cache of who computed it
    to_host: bool = field(init=False, default=False)  # the prompt's KV is needed in host memory, to be sent from there
    moments: dict[str, float] = field(init=False, default_factory=dict)  # of this worker's stamps, by their names

    def __post_init__(self) -> None:
        assign = self.assign
        self.reqs = tuple(
            Req(
                assign.request_id,
                assign.attempt,
                assign.first_choice + index,
                assign.prompt_ids,
                assign.sampling,
                assign.num_replayed,
                assign.priority,
            )
            for index in range(assign.num_choices)
        )

    @property
    def key(self) -> Key:
        """How its sender names it: (request_id, attempt)."""
        return self.assign.key

    @property
    def moves_kv(self) -> bool:
        """Whether prefill hands KV over to decode. It does not if the first token is the only one."""
        return self.assign.num_left > 1

    @property
    def prompt_len(self) -> int:
        """Tokens to compute before the first one is drawn."""
        return len(self.assign.prompt_ids)

    @property
    def prompt(self) -> Req:
        """The first choice. Where the prompt is computed, it holds the prompt's row, pages and progress."""
        return self.reqs[0]

    @cached_property
    def cache_key(self) -> CacheKey:
        """The prompt as a cache knows it."""
        return CacheKey(packed(self.assign.prompt_ids), self.assign.cache_salt)

    @property
    def wanted_cached(self) -> CacheKey | None:
        """The prompt as it is looked up where it is computed. None: cached KV is of no use, because log-probabilities
        of the prompt's tokens are asked for, and only its computation gives them."""
        return self.cache_key if self.assign.prompt_logprobs is None else None

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that no launch computes yet."""
        return self.prompt_len - self.prompt.num_computed

    @property
    def has_ended(self) -> bool:
        """Whether every choice has ended."""
        return all(req.finish is not None for req in self.reqs)

    def cancel(self, choice: int = -1) -> list[Req]:
        """Ends one choice, or all of them if it is -1. Returns those that have not ended before."""
        cancelled = [req for req in self.reqs if req.finish is None and choice in (-1, req.choice)]
        for req in cancelled:
            req.finish = FinishReason.CANCELLED
        return cancelled


def assign_fault(
    assign: Assign, planner: Planner, num_tokens: int, num_choices: int, reservation: int = 0
) -> str | None:
    """Why a worker with this planner can never hold `num_tokens` for each of `num_choices`, or the first field of
    `assign` that it cannot take, in one sentence; or None."""
    prompt, sampling, n = assign.prompt_ids, assign.sampling, assign.num_choices
    return (
        grammar_fault(assign.grammar, sampling.grammar, sampling.eos_token_ids, planner.vocab_size)
        or request_fault(
            prompt, sampling, n, vocab_size=planner.vocab_size, max_choices=planner.kv_manager.max_requests
        )
        or replay_fault(prompt, sampling, n, assign.first_choice, assign.num_replayed)
        or transfer_fault(assign.attempt, reservation)
        or planner.kv_manager.never_fits(len(prompt), num_tokens, num_choices)
    )


def load_of(
    planner: Planner,
    phases: "PhaseTimes",
    num_waiting: int,
    queued_prompt_tokens: int,
    counters: Mapping[str, float] | None = None,
) -> WorkerStats:
    """Load for the heartbeat of a worker that decodes. `num_waiting` requests do not decode yet."""
    return WorkerStats(
        kv_pages=planner.kv_manager.counts(),
        host_pages=planner.kv_manager.host_page_counts(),
        running=planner.num_running,
        waiting=num_waiting + len(planner.spills.away),
        queued_prompt_tokens=queued_prompt_tokens,
        num_launches=planner.num_launches,
        counters={**(counters or {}), **planner.counters},
        times=phases.spreads,
    )


@dataclass
class Outbox:
    """Messages in sending order, by direction."""

    gateway: list[ToGateway] = field(default_factory=list)
    prefill: list[tuple[WorkerAddress, ToPrefill]] = field(default_factory=list)  # used by decode
    decode: list[tuple[int, ToDecode]] = field(default_factory=list)  # used by prefill: (instance, message)

    def tell_prompts(self, launched: Launched, served: Container[Req]) -> None:
        """Tells the gateway of the prompt tokens that a launch has scored, of requests that are still served: if the
        launch before has failed, these tokens come behind a gap."""
        for req, start, logprobs in launched.prompt_logprobs:
            if req in served:
                self.gateway.append(PromptLogprobs(req.request_id, req.attempt, start, logprobs))

    def fail(self, key: tuple[str, int], error: BatonError) -> None:
        """Tells the gateway that the request `key`, (request_id, attempt), cannot go on."""
        request_id, attempt = key
        failed = RequestFailed(request_id=request_id, attempt=attempt, code=error.code, message=error.message)
        self.gateway.append(failed)


PHASES = {  # the stamp that ends a phase: its name, and the stamps that may begin it
    "reserved, job sent": ("queue_time", ("queued at decode",)),
    "prefill start": ("queue_time", ("job received", "queued")),  # at prefill, at a unified worker
    "first token": ("prefill_time", ("prefill start",)),
    "KV delivered": ("kv_transfer_time", ("first frame landed",)),
    "KV acknowledged": ("kv_handover_time", ("prompt computed",)),  # both at prefill
}


class PhaseTimes:
    """Takes every stamp of every request, even if its client asks for no time line."""

    def __init__(self, clock: Clock, worker_id: str) -> None:
        self._clock = clock
        self._worker_id = worker_id
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(TIME_EDGES_S) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def stamp(self, request: Assigned, name: str, at: float | None = None) -> None:
        """Stamps `request` with the moment `at`, in seconds of the clock, or with now."""
        moment = self._clock.now() if at is None else at
        request.moments[name] = moment
        if request.assign.timeline:
            request.stamps.append(Stamp(name, moment, self._worker_id))

        phase, begins = PHASES.get(name, ("", ()))
        for since in [request.moments[begin] for begin in begins if begin in request.moments]:
            self._counts[phase][bisect_left(TIME_EDGES_S, moment - since)] += 1
            self._seconds[phase] += moment - since

    @property
    def spreads(self) -> dict[str, TimeSpread]:
        """The times by phase, for the heartbeat."""
        return {phase: TimeSpread(tuple(counts), self._seconds[phase]) for phase, counts in self._counts.items()}


@dataclass(eq=False)
class TokenStream:
    """Collects the tokens of choices until the next `Tokens` message."""

    planner: Planner
    requests: Mapping[Req, Assigned]  # the worker's, by each of their choices
    phases: PhaseTimes
    names: tuple[str, str]  # the stamps of a choice's first two tokens; "" gets no stamp

    def __post_init__(self) -> None:
        self._choices: list[ChoiceTokens] = []
        self._stamps: dict[str, tuple[Stamp, ...]] = {}
        self._cached: dict[str, int] = {}
        self._preempted: list[Preempted] = []

    def add(self, req: Req, run: tuple[int, ...], logprobs: Logprobs | None = None) -> bool:
        """Appends what a launch has drawn to the choice `req`. True if the request has ended with it; then all memory
        is given back. `logprobs`: those of `run`, if the request asks for them."""
        seq, taken = len(req.outputs), req.append(run)
        if logprobs is not None and len(taken) < len(run):
            logprobs = logprobs.part(0, len(taken))
        # By position: one is made for each token, and keywords take twice as long (26 us instead of 12 for 64).
        self._choices.append(
            ChoiceTokens(req.request_id, req.attempt, req.choice, seq, taken, req.finish or "", logprobs)
        )

        first = seq - req.num_replayed
        if seq == 0 and (num_cached := self.requests[req].num_cached):
            self._cached[req.request_id] = num_cached
        if first < 2:
            for name in filter(None, self.names[first : first + len(taken)]):
                self.phases.stamp(self.requests[req], name)
        if req.finish is None:
            return False

        request = self.requests[req]
        if len(taken) < len(run):  # so the last token was a proposal, too
            self.phases.stamp(request, "run cut")
        self.planner.keep(req, request.assign.cache_salt)
        self.planner.release(req)
        if not request.has_ended:
            return False
        self.phases.stamp(request, "decode done")
        self._stamps[req.request_id] = tuple(request.stamps)
        return True

    def preempt(self, reqs: Sequence[Req]) -> list[Req]:
        """Ends choices that are preempted here: the gateway begins each again. Their KV is dropped.

        Returns those with which their requests have ended.
        """
        ended: list[Req] = []
        for req in reqs:
            self._preempted.append(Preempted(req.request_id, req.attempt, req.choice))
            req.finish = FinishReason.PREEMPTED
            self.planner.release(req)
            if self.requests[req].has_ended:
                ended.append(req)
        return ended

    def flush(self, outbox: Outbox) -> None:
        """Puts the messages into `outbox`: a choice's tokens before the message that it is preempted."""
        if self._choices:
            outbox.gateway.append(Tokens(tuple(self._choices), self._stamps, self._cached))
            self._choices, self._stamps, self._cached = [], {}, {}
        outbox.gateway += self._preempted
        self._preempted = []
