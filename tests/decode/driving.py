"""Drives a cluster step by step to a state that a test names, and says what a cluster at rest looks like."""

import random
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any

from decode.requests import DecodeRequest, DecodeState
from decode.worker import DecodeWorker
from prefill.jobs import Job
from prefill.worker import PrefillWorker
from protocol.messages_gateway import FinishReason, FirstToken, Role, SamplingParams, ToGateway, Tokens, finish_reason
from tests.cluster import Cluster
from tests.doubles.backend_inproc import InprocNetwork
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from transfer.states import TransferState
from unified.worker import UnifiedWorker
from worker.requests import Assigned

VOCAB = 211


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    """Greedy parameters."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **more)


PARAMS = greedy(15)


def prompt_of(name: str, length: int, vocab: int = VOCAB) -> list[int]:
    """A prompt that belongs to `name`."""
    rng = random.Random(name)
    return [rng.randrange(vocab) for _ in range(length)]


class Driven(Cluster):
    """A cluster that knows what it was asked for, and so how each answer must end."""

    def __init__(self, runner: FakeRunner, topology: str, **options: Any) -> None:
        super().__init__(runner, topology, **options)
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}

    def ask(self, name: str, prompt: int | list[int], params: SamplingParams | None = None, n: int = 1) -> None:
        """A request with this prompt, or with one of its own that has as many tokens. `params`: by default PARAMS."""
        params = params or PARAMS
        self.asked[name] = (prompt_of(name, prompt) if isinstance(prompt, int) else prompt, params)
        self.assign(name, *self.asked[name], n)

    @property
    def prefill(self) -> PrefillWorker:
        """The only one."""
        (worker,) = self.prefills.values()
        return worker

    @property
    def decode(self) -> DecodeWorker:
        """The only one."""
        (worker,) = self.decodes.values()
        return worker

    @property
    def unified(self) -> UnifiedWorker:
        """The only one."""
        (worker,) = self.unifieds
        return worker

    @property
    def clock(self) -> VirtualClock:
        """The one that the test gave it."""
        assert isinstance(self._clock, VirtualClock)
        return self._clock

    def steps(self, number: int) -> None:
        """So many turns of every worker."""
        for _ in range(number):
            self.turn()

    def run_past_deadlines(self, seconds: float) -> None:
        """Runs to rest; whenever nothing moves any more, time does."""
        idle = 0

        def is_done() -> bool:
            nonlocal idle
            idle = 0 if any(worker.planner.in_flight for worker in self.workers) else idle + 1
            if idle > 100:
                self.clock.advance(seconds)
                idle = 0
            return self.at_rest()

        self.run(is_done)

    def expect_end(self, *cut: str | tuple[str, int], failed: Iterable[str] = (), lossy: bool = False) -> None:
        """Only `failed` have failed. Their choices and those of `cut`, requests or choices, are right as far as they
        go; all others to their end. Nothing is owned anywhere. `lossy`: KV may have been lost on its way."""
        assert set(self.failures) == set(failed)
        for name, choice in self.answers:
            if {name, (name, choice)} & {*cut, *failed}:
                expect_prefix(self, name, *self.asked[name], choice)
            else:
                _expect_whole(self, name, *self.asked[name], choice)
        expect_rest(self, lossy)


def make_cluster(topology: str = "1P1D", runner: FakeRunner | None = None, **more: Any) -> Driven:
    """Small pages and chunks, so that a prompt of 60 tokens takes many launches and frames."""
    options: dict[str, Any] = {"page_size": 4, "chunk_size": 7, "num_pages": 256, **more}
    return Driven(runner or FakeRunner(vocab_size=VOCAB, context_length=256), topology, **options)


def reference(prompt: Sequence[int], params: SamplingParams, vocab: int = VOCAB) -> tuple[list[int], FinishReason]:
    """What a choice must be, to its end. The fake's other logits are equal: the first that is not banned wins."""
    outputs: list[int] = []
    foreseen: list[int] = []
    while True:
        if len(foreseen) <= len(outputs):
            foreseen = outputs + list(_continuation((*prompt, *outputs), params.max_tokens - len(outputs), vocab))
        token = foreseen[len(outputs)]
        if len(outputs) < params.min_tokens and token in params.ending_ids:
            token = min(set(range(vocab)) - params.ending_ids)
            foreseen = []  # the model goes on from another token
        outputs.append(token)
        reason = finish_reason(params, len(outputs), token)
        if reason is not None:
            return outputs, reason


@cache
def _continuation(prompt: tuple[int, ...], num_tokens: int, vocab: int) -> tuple[int, ...]:
    return tuple(FakeRunner(vocab_size=vocab).expected_tokens(prompt, num_tokens))


def expect_exact(cluster: Cluster, name: str, prompt: Sequence[int], params: SamplingParams, n: int = 1) -> None:
    """Every choice of the request is what the model says, to its end."""
    assert name not in cluster.failures, cluster.failures[name]
    for choice in range(n):
        _expect_whole(cluster, name, prompt, params, choice)


def _expect_whole(cluster: Cluster, name: str, prompt: Sequence[int], params: SamplingParams, choice: int) -> None:
    answer = cluster.answers[name, choice]
    assert (answer.ids, answer.finish) == reference(prompt, params, cluster.runner.config.vocab_size)


def expect_prefix(cluster: Cluster, name: str, prompt: Sequence[int], params: SamplingParams, choice: int = 0) -> None:
    """What was sent of an answer that was cut short is right as far as it goes, and does not claim to be whole."""
    tokens, _ = reference(prompt, params, cluster.runner.config.vocab_size)
    answer = cluster.answers[name, choice]
    assert answer.ids == tokens[: len(answer.ids)]
    assert answer.finish == ""


class Phase(Enum):
    """How far a request has come: the role of a worker, and the state of its transfer there, or its own."""

    RESERVING = Role.DECODE, TransferState.RESERVING
    REQUESTED = Role.DECODE, TransferState.REQUESTED
    RECEIVING = Role.DECODE, TransferState.RECEIVING
    DELIVERED = Role.DECODE, TransferState.DELIVERED
    RUNNING = Role.DECODE, DecodeState.RUNNING
    WAITING = Role.PREFILL, TransferState.RESERVING
    COMPUTING = Role.PREFILL, TransferState.REQUESTED
    SENDING = Role.PREFILL, TransferState.SENDING
    QUEUED = Role.UNIFIED, "no launch has computed any of its prompt"
    PREFILLING = Role.UNIFIED, "launches have computed a part of its prompt"
    RELAYED = Role.UNIFIED, "it decodes, and its first tokens are on their way"
    DECODING = Role.UNIFIED, "it has tokens"

    @property
    def role(self) -> Role:
        """Of the worker at which it is observed."""
        role: Role = self.value[0]
        return role


SEEN = tuple(phase for phase in Phase if phase is not Phase.DELIVERED)  # nothing can arrive in it: a part of one step
PAIR = tuple(phase for phase in SEEN if phase.role is not Role.UNIFIED)


def phase_at(role: Role, cluster: Cluster, name: str) -> Phase | None:
    """The phase of a request at its worker of this role, or None when the worker knows it no more."""
    known = [request for worker in cluster.of_role(role) for request in worker.served.by_key.values()]
    return next((phase_of(request) for request in known if request.assign.key == (name, 0)), None)


decode_phase = partial(phase_at, Role.DECODE)
job_phase = partial(phase_at, Role.PREFILL)


def phase_of(known: Assigned) -> Phase:
    """The phase of what a worker knows."""
    if isinstance(known, Job):
        return Phase((Role.PREFILL, known.transfer_state))
    if isinstance(known, DecodeRequest):
        return Phase((Role.DECODE, known.transfer_state if known.state is DecodeState.WAITING else known.state))
    if known.prompt_left:
        return Phase.QUEUED if known.prompt_left == known.prompt_len else Phase.PREFILLING
    return Phase.DECODING if any(req.outputs for req in known.reqs) else Phase.RELAYED


def drive_to(cluster: Cluster, name: str, phase: Phase) -> None:
    """Steps until `name` is observed in `phase`."""
    cluster.run(lambda: phase_at(phase.role, cluster, name) is phase)
    assert phase_at(phase.role, cluster, name) is phase


def driven(phase: Phase, topology: str = "", of: str = "r", n: int = 1, **options: Any) -> Driven:
    """A cluster in which the request `of` has come to `phase`, among others. By default it has one pair, or one unified
    worker. Frames take a while."""
    topology = topology or ("1U" if phase.role is Role.UNIFIED else "1P1D")
    cluster = make_cluster(topology, network=slow_network(), **options)
    for name, length, num_choices in (("before", 9, 1), (of, 61, n), ("after", 30, 2)):
        cluster.ask(name, length, n=num_choices)
    drive_to(cluster, of, phase)
    return cluster


class Recorder:
    """Every piece of an answer since `start`, and who sent it: ("first" | "tokens", request, choice, seq)."""

    def __init__(self, cluster: Cluster) -> None:
        self.pieces: list[tuple[str, str, int, int]] = []
        cluster.on_message = self._take

    def start(self) -> None:
        """Forgets what came so far."""
        self.pieces.clear()

    def of(self, name: str, choice: int | None = None) -> list[tuple[str, int, int]]:
        """(sender, choice, seq) of one request or choice."""
        return [(who, c, seq) for who, request, c, seq in self.pieces if request == name and choice in (None, c)]

    def _take(self, message: ToGateway) -> None:
        if isinstance(message, FirstToken | Tokens):
            who = "first" if isinstance(message, FirstToken) else "tokens"
            self.pieces += [(who, piece.request_id, piece.choice, piece.seq) for piece in message.choices]


def expect_rest(cluster: Cluster, credit_bytes_lost: bool = False) -> None:
    """Nothing is owned, queued, remembered or owed anywhere."""
    for _ in range(4):  # acknowledgements and credit that are still under way
        cluster.turn()
    assert cluster.at_rest()
    cluster.check()
    for worker in cluster.workers:
        worker.planner.kv_manager.flush()
        assert (counts := worker.planner.kv_manager.counts()).free == counts.total, counts
        assert (
            len(worker.planner.kv_manager.retired) == len(worker.planner.in_flight) == len(worker.planner.copies) == 0
        )
    for prefill in cluster.prefills.values():
        assert (prefill.served.by_key, prefill.served.of, [*prefill.prompts.waiting], prefill.prompts.computing) == (
            {},
            {},
            [],
            {},
        )
        counters = prefill._sender.counters
        assert counters["transfers_now"] == counters["frames_waiting_now"] == 0
        assert credit_bytes_lost or counters["bytes_in_flight_now"] == 0
    for decode in cluster.decodes.values():
        assert decode.served.by_key == {} and decode._receiver.counters["reservations_now"] == 0
        for instance in cluster.prefills:
            peer = decode._peers.by_instance.get(instance)
            assert peer is None or not peer.accepted or not peer.queued
    cluster.close()


def slow_network() -> InprocNetwork:
    """Frames take a while, so that a job is seen waiting for its acknowledgement."""
    return InprocNetwork(lambda packet: [packet.delayed(2)])
