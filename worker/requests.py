"""A request on a worker: its choices, chunks and stamps, its tokens, and the messages about it.

The worker's loop sends and clears the messages; tests read them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from protocol.errors import BatonError
from protocol.grammar import grammar_fault
from protocol.logprobs import Logprobs
from protocol.messages_gateway import (
    Assign,
    ChoiceTokens,
    FinishReason,
    PromptLogprobs,
    RequestFailed,
    Retracted,
    ToGateway,
    Tokens,
    WorkerAddress,
)
from protocol.messages_handoff import ToDecode, ToPrefill
from protocol.prefixes import ID_BYTES, packed
from protocol.worker_facts import TIME_EDGES_S, Stamp, TimeSpread, WorkerStats
from runtime.clock import Clock
from scheduler.planning.chunks import ExtendChunk, plan_chunks
from scheduler.planning.kv_book import CacheKey
from scheduler.planning.launched import Launched
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req, replay_fault, request_fault, transfer_fault

A = TypeVar("A", bound="Assigned")


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
    def key(self) -> tuple[str, int]:
        """(request_id, attempt)."""
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


def going_on(requests: Iterable[A], planner: Planner) -> list[A]:
    """Those of the admitted requests whose prompts may be launched: their answers are read as far as they go."""
    return [request for request in requests if request.prompt not in planner.replays]


def next_chunks(
    requests: Sequence[Assigned],
    chunk_size: int,
    decode_tokens: int = 0,
    max_tokens: int | None = None,
    *,
    lookahead: int = 0,
) -> tuple[ExtendChunk, ...]:
    """The prompt chunks of the next launch, which computes `decode_tokens` of decodes, too. The oldest request comes
    first.

    For the bounds see plan_chunks. `lookahead`: the layout's. A draft begins with the target's features of so many
    tokens at a prompt's end, so one launch computes them all.
    """
    if not requests:
        return ()
    chunks: list[ExtendChunk] = []
    left = [request.prompt_left for request in requests]
    sizes = plan_chunks(left, chunk_size, decode_tokens, max_tokens, max(lookahead, 1))
    for request, size in zip(requests, sizes, strict=True):
        prompt, end = request.prompt, request.prompt.num_computed + size
        samples = [req for req in request.reqs if req.finish is None] if end == prompt.prompt_len else []
        if size:
            asked = request.assign.prompt_logprobs
            chunks.append(ExtendChunk(prompt, prompt.num_computed, end, tuple(samples), request.to_host, asked))
    return tuple(chunks)


def is_too_early(
    request: Assigned, computing: Iterable[Assigned], planner: Planner, chunk_size: int, max_tokens: int | None
) -> bool:
    """Whether a prompt should be admitted later, since more of it will be cached then. For the bounds see plan_chunks.

    It waits as long as launches are full without it, and as long as a prompt in `computing` has a quarter or more of
    what it would have to compute. All of `computing` are computed before long, or end. It does not wait for one whose
    answer is still being read.
    """
    computing = going_on(computing, planner)
    num_tokens = sum(min(each.prompt_left, chunk_size or each.prompt_left) for each in computing)
    if num_tokens >= (max_tokens or chunk_size or 1):
        return True
    if not computing or not planner.book.caches or request.wanted_cached is None:
        return False

    key, num_cached = request.cache_key, planner.book.num_cached(request.cache_key)
    end = num_cached + max(planner.book.page_size, (request.prompt_len - num_cached) // 4)
    ahead = planner.book.lookahead
    start = key.ids[: (end + ahead) * ID_BYTES]
    return end + max(ahead, 1) <= request.prompt_len and any(
        each.cache_key.salt == key.salt and each.cache_key.ids.startswith(start) for each in computing
    )


def assign_fault(
    assign: Assign, planner: Planner, num_tokens: int, num_choices: int, reservation: int = 0
) -> str | None:
    """Why a worker with this planner can never hold `num_tokens` for each of `num_choices`, or the first field of
    `assign` that it cannot take, in one sentence; or None."""
    prompt, sampling, n = assign.prompt_ids, assign.sampling, assign.num_choices
    return (
        grammar_fault(assign.grammar, sampling.grammar, sampling.eos_token_ids, planner.vocab_size)
        or request_fault(prompt, sampling, n, vocab_size=planner.vocab_size, max_choices=planner.book.max_requests)
        or replay_fault(prompt, sampling, n, assign.first_choice, assign.num_replayed)
        or transfer_fault(assign.attempt, reservation)
        or planner.book.never_fits(len(prompt), num_tokens, num_choices)
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
        kv_pages=planner.book.counts(),
        host_pages=planner.book.slot_counts(),
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

    def tell_prompts(self, launched: Launched, is_served: Callable[[Req], bool]) -> None:
        """Tells the gateway of the prompt tokens that a launch has scored, of requests that are still served: if the
        launch before has failed, these tokens come behind a gap."""
        for req, start, logprobs in launched.prompt_logprobs:
            if is_served(req):
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
    """The contents of the next `Tokens` message."""

    planner: Planner
    requests: Mapping[tuple[str, int], Assigned]  # the worker's, by (request_id, attempt)
    phases: PhaseTimes
    names: tuple[str, str]  # the stamps of a choice's first two tokens; "" gets no stamp

    def __post_init__(self) -> None:
        self._choices: list[ChoiceTokens] = []
        self._stamps: dict[str, tuple[Stamp, ...]] = {}
        self._cached: dict[str, int] = {}
        self._retracted: list[Retracted] = []

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
        if seq == 0 and (num_cached := self.requests[req.key].num_cached):
            self._cached[req.request_id] = num_cached
        if first < 2:
            for name in filter(None, self.names[first : first + len(taken)]):
                self.phases.stamp(self.requests[req.key], name)
        if req.finish is None:
            return False

        request = self.requests[req.key]
        if len(taken) < len(run):  # so the last token was a proposal, too
            self.phases.stamp(request, "run cut")
        self.planner.keep(req, request.assign.cache_salt)
        self.planner.release(req)
        if not request.has_ended:
            return False
        self.phases.stamp(request, "decode done")
        self._stamps[req.request_id] = tuple(request.stamps)
        return True

    def retract(self, reqs: Sequence[Req]) -> list[Req]:
        """Ends choices that give way here: the gateway begins each again. Their KV is dropped.

        Returns those with which their requests have ended.
        """
        ended: list[Req] = []
        for req in reqs:
            self._retracted.append(Retracted(req.request_id, req.attempt, req.choice))
            req.finish = FinishReason.PREEMPTED
            self.planner.release(req)
            if self.requests[req.key].has_ended:
                ended.append(req)
        return ended

    def flush(self, outbox: Outbox) -> None:
        """Puts the messages into `outbox`: a choice's tokens before it gives way."""
        if self._choices:
            outbox.gateway.append(Tokens(tuple(self._choices), self._stamps, self._cached))
            self._choices, self._stamps, self._cached = [], {}, {}
        outbox.gateway += self._retracted
        self._retracted = []
