"""A whole deployment in one process: the real cores and state machines on an in-process network.

There is no gateway process: the cluster assigns requests, collects tokens by (attempt, seq), and cancels. It has no
sockets, no HTTP and no text.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from decode.worker import DecodeWorker
from model.draft import begins_with
from model.host_copies import HostCopies
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from model.runner import Runner
from prefill.worker import PrefillWorker
from protocol.logprobs import PromptLogprobsAsked
from protocol.messages_gateway import (
    Assign,
    CancelRequest,
    FirstToken,
    PeerLost,
    Preempted,
    PromptLogprobs,
    RankEndpoint,
    RequestFailed,
    Role,
    SamplingParams,
    ToGateway,
    Tokens,
    WorkerAddress,
)
from runtime.clock import Clock, MonotonicClock
from scheduler.agreement import Agreement
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.grammars import AnswerGrammars
from scheduler.execution.streams import Stream
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.planner import Executes, Planner
from scheduler.planning.speculation import Speculation
from scheduler.planning.spills import Costs
from scheduler.speculation.modes import launches_for
from tests.answers import Answer, PromptScores, choices_of, next_attempt
from tests.doubles.backend_inproc import InprocNetwork
from tests.doubles.page_ledger import check_pages, is_at_rest
from tests.grammars import grammars_for, text_named
from unified.worker import UnifiedWorker
from worker.boot import open_streams
from worker.policies import DEFAULTS, Policies

T = TypeVar("T")
Worker = PrefillWorker | DecodeWorker | UnifiedWorker
Seat = Callable[[str, Runner, Stream], tuple[Runner, Agreement | None]]  # of a kind of worker: "P", "D" or "U"


class Cluster:
    """`topology` is like "2P1D" or "1U". Workers share one runner; each has KV and two streams of its own. `seat` makes
    a worker a rank of a group, with another runner and agreement. `num_served` of each kind get requests."""

    def __init__(
        self,
        runner: Runner,
        topology: str,
        *,
        overlap: bool = True,
        page_size: int = 16,
        chunk_size: int = 32,
        num_pages: int = 512,
        max_requests: int = 32,
        network: InprocNetwork | None = None,
        max_context: int | None = None,
        mirrored: bool = False,
        clock: Clock | None = None,
        decode_page_size: int | None = None,
        debug: bool = True,
        streams: Callable[[], tuple[Stream, Stream]] | None = None,
        wrap: Callable[[Executor], Executes] = lambda executor: executor,
        caches: bool = False,
        margin: int = 0,
        policies: Policies = DEFAULTS,
        num_host_pages: int = 0,
        costs: Costs | None = None,
        staging: Callable[[], Stream] | None = None,
        num_steps: int = 3,  # with a draft
        tree: tuple[int, int] = (1, 0),  # top-k and nodes
        prefill_runner: Runner | None = None,
        may_lack_draft: bool = False,
        seat: Seat = lambda kind, runner, forward: (runner, None),
        num_served: int | None = None,
        grammars: Callable[[Runner], AnswerGrammars] = grammars_for,
    ) -> None:
        self.runner = runner
        self.network = network or InprocNetwork()
        self.answers: dict[tuple[str, int], Answer] = {}
        self.prompts: dict[str, PromptScores] = {}
        self.failures: dict[str, RequestFailed] = {}
        self.first_tokens: set[tuple[str, int]] = set()
        self.cached: dict[str, int] = {}  # prompt tokens that were not computed, if there are any
        self.prefills: dict[int, PrefillWorker] = {}
        self.decodes: dict[int, DecodeWorker] = {}
        self.unifieds: list[UnifiedWorker] = []
        self.addresses: dict[int, WorkerAddress] = {}
        self.attempts: dict[str, list[tuple[Worker, Assign]]] = {}  # of each request
        self.cancelled: defaultdict[str, set[int]] = defaultdict(set)  # choices
        self.num_preempted = 0
        self.on_message: Callable[[ToGateway], None] = lambda message: None
        self.take_turn: Callable[[Worker], bool] = lambda worker: worker.turn()
        self.retried: frozenset[str] = frozenset()  # codes of failures after which a request begins again
        self._num_served = num_served
        self._next, self._clock = 0, clock or MonotonicClock()
        self._policies = replace(policies, overlap=overlap, chunk_size=chunk_size)
        self._decode_page_size = decode_page_size or page_size
        self._prefill_runner, self._may_lack_draft = prefill_runner or runner, may_lack_draft
        self._woken, self._has_threads = threading.Event(), streams is None  # set when a stream has reached an event
        counts = {kind: int(count) for count, kind in zip(topology[::2], topology[1::2], strict=True)}

        def planner(kind: str, page_size: int = page_size, runner: Runner = runner) -> Planner:
            layout, device = runner.kv_layout(page_size), runner.device
            forward, schedule = open_streams(device, wake=self._woken.set) if streams is None else streams()
            runner, agreement = seat(kind, runner, forward)
            rank, num_ranks = (agreement.rank, agreement.size) if agreement else (0, 1)
            stage = open_streams(device, wake=self._woken.set)[0] if mirrored and streams is None else None
            kv_manager = KvManager(
                num_pages,
                page_size,
                max_requests=max_requests,
                max_context=max_context or runner.config.context_length,
                margin=margin,
                caches=caches,
                num_host_pages=num_host_pages,
                lookahead=layout.lookahead,
            )
            kv = (MirroredKv if mirrored else PagedKv)(layout, num_pages, device)
            shape = DraftShape(num_steps, *tree) if runner.draft else NO_DRAFT
            executor = Executor(
                runner,
                kv,
                num_rows=kv_manager.rows.num_rows,
                max_pages=kv_manager.max_pages,
                forward=forward,
                schedule=schedule,
                staging=stage if staging is None else staging(),
                host=HostCopies(kv, num_host_pages) if num_host_pages else None,
                debug=debug,
                launches=launches_for(runner.draft, shape),
                rank=rank,
                num_ranks=num_ranks,
                grammars=grammars(runner),
            )
            speculation = Speculation(shape, begins_with(runner.draft)) if runner.draft else None
            how: dict[str, Any] = {"has_twin": mirrored, "costs": costs, "speculation": speculation}
            how |= {"agreement": agreement, "max_graphed": runner.max_graphed}
            self._executors[made := Planner(kv_manager, wrap(executor), layout, runner.config.vocab_size, **how)] = (
                executor
            )
            return made

        self._executors: dict[Planner, Executor] = {}
        self._planner = planner
        for index in range(counts.get("P", 0)):
            self.add_prefill(f"prefill-{index}", 100 + index)
        for index in range(counts.get("D", 0)):
            self.add_decode(f"decode-{index}", 200 + index)
        for index in range(counts.get("U", 0)):
            self.add_unified(f"unified-{index}", 300 + index)

    def add_prefill(self, worker_id: str, instance: int, runner: Runner | None = None) -> PrefillWorker:
        """One more worker, maybe with another model or draft."""
        runner = runner or self._prefill_runner
        planner = self._planner("P", runner=runner)
        address = WorkerAddress(worker_id, instance, peer=f"inproc-{instance}")
        sender = self.network.sender(self._executors[planner].kv, instance)
        worker = PrefillWorker(
            planner,
            sender,
            address,
            runner.fingerprint(),
            self._clock,
            self._policies,
        )
        self.addresses[instance] = address
        self.prefills[instance] = worker
        return worker

    def add_decode(self, worker_id: str, instance: int) -> DecodeWorker:
        """One more worker."""
        planner = self._planner("D", self._decode_page_size)
        receiver = self.network.receiver(self._executors[planner].kv)
        address = WorkerAddress(worker_id, instance, ranks=(RankEndpoint(receiver.address),))
        worker = DecodeWorker(
            planner,
            receiver,
            address,
            self.runner.fingerprint(),
            self._clock,
            self._policies,
            reservations_from=(instance << 32) + 1,
            may_lack_draft=self._may_lack_draft,
        )
        self.addresses[instance] = address
        self.decodes[instance] = worker
        return worker

    def add_unified(self, worker_id: str, instance: int) -> UnifiedWorker:
        """One more worker."""
        worker = UnifiedWorker(self._planner("U"), worker_id, self._clock, self._policies)
        self.addresses[instance] = WorkerAddress(worker_id, instance)
        self.unifieds.append(worker)
        return worker

    @property
    def workers(self) -> list[Worker]:
        """Every worker."""
        return [*self.prefills.values(), *self.decodes.values(), *self.unifieds]

    def of_role(self, role: Role) -> Sequence[Worker]:
        """Every worker of a role."""
        if role is Role.UNIFIED:
            return self.unifieds
        return [*(self.prefills if role is Role.PREFILL else self.decodes).values()]

    @property
    def computing(self) -> list[PrefillWorker | UnifiedWorker]:
        """The workers that compute prompts."""
        return [*self.prefills.values(), *self.unifieds]

    def executor(self, worker: Worker) -> Executor:
        """The executor that the worker's planner feeds."""
        return self._executors[worker.planner]

    def assign(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingParams,
        n: int = 1,
        *,
        first_choice: int = 0,
        replayed: Sequence[int] = (),
        cache_salt: str = "",
        priority: int = 0,
        prompt_logprobs: PromptLogprobsAsked | None = None,
    ) -> None:
        """Round robin over pairs. `replayed` are outputs that its one choice has already."""
        self.prompts[request_id] = PromptScores(prompt_logprobs, len(prompt))
        for choice in range(first_choice, first_choice + n):
            self.answers[request_id, choice] = Answer(dict(enumerate(replayed)))
        context = (*prompt, *replayed)
        assign = Assign(
            request_id,
            0,
            context,
            sampling,
            n,
            None,
            first_choice=first_choice,
            num_replayed=len(replayed),
            cache_salt=cache_salt,
            priority=priority,
            grammar=text_named(sampling.grammar),
            prompt_logprobs=self.prompts[request_id].missing,
        )
        self.attempts[request_id] = []
        self._assign(assign)

    def _assign(self, assign: Assign) -> None:
        self._next += 1
        prefill = None
        worker: Worker
        if self.unifieds:
            worker = self._in_turn(self.unifieds, self._next)
        else:
            worker = self._in_turn(list(self.decodes.values()), self._next)
            prefill = self.addresses[self._in_turn(list(self.prefills), self._next // 2)]
        self.attempts[assign.request_id].append((worker, assign))
        worker.on_gateway(replace(assign, prefill=prefill))

    def _in_turn(self, workers: Sequence[T], turn: int) -> T:
        served = workers[: self._num_served]
        return served[turn % len(served)]

    def begin_again(self, request_id: str, *choices: int) -> None:
        """Each choice goes on in an attempt of its own, unless it has ended or its client has left."""
        for choice in choices:
            if not self.answers[request_id, choice].finish and not self.cancelled[request_id] & {-1, choice}:
                self._begin_again(request_id, choice)

    def _begin_again(self, request_id: str, choice: int) -> None:
        attempts, outputs = self.attempts[request_id], self.answers[request_id, choice].ids
        self._assign(next_attempt(attempts[0][1], len(attempts), choice, outputs, self.prompts[request_id].missing))

    def cancel(self, request_id: str, choice: int = -1) -> None:
        """A client leaves."""
        self.cancelled[request_id].add(choice)
        for worker, assign in self.attempts.get(request_id, ()):
            if choice in (-1, *choices_of(assign)) and worker in self.workers:
                worker.on_gateway(CancelRequest(request_id, assign.attempt, choice))

    def lose_prefill(self, instance: int) -> None:
        """The gateway declares a prefill worker lost; it is not stepped any more."""
        worker = self.prefills.pop(instance)
        self.executor(worker).close()
        for decode in self.decodes.values():
            decode.on_gateway(PeerLost(self.addresses[instance].worker_id, instance))

    def lose_decode(self, instance: int) -> None:
        """The gateway declares a decode worker lost; it is not stepped any more."""
        self.executor(self.decodes.pop(instance)).close()
        for prefill in self.prefills.values():
            prefill.on_gateway(PeerLost(self.addresses[instance].worker_id, instance))

    def turn(self) -> bool:
        """One turn of every worker, then of the network."""
        progressed = False
        for worker in self.workers:
            progressed |= self.take_turn(worker)
            self._deliver(worker)
        return progressed

    def run(self, until: Callable[[], bool] | None = None, max_idle: int = 20_000) -> None:
        """Steps until `until()`, or until every answer has ended and the ledgers are at rest."""
        done, idle = until or self.at_rest, 0
        while not done():
            self._woken.clear()
            if self.turn():
                idle = 0
                continue
            idle += 1
            assert idle < max_idle, "the cluster hangs"
            if self._has_threads:
                self._woken.wait(0.001)  # or the threads would hardly get the interpreter
            for worker in self.workers:
                if (launches := self.executor(worker).launches) and (event := launches[0].copy_done) is not None:
                    event.synchronize()
                    break

    def at_rest(self) -> bool:
        """Nothing queued, in flight or owned anywhere, neither in host memory."""
        return all(is_at_rest(worker.planner) and worker.stats().waiting == 0 for worker in self.workers)

    def check(self) -> None:
        """The ledger of every worker adds up."""
        for worker in self.workers:
            check_pages(worker.planner.kv_manager.pages)
            if worker.planner.kv_manager.host_pages is not None:
                check_pages(worker.planner.kv_manager.host_pages)

    def close(self) -> None:
        """Ends the forward threads."""
        for worker in self.workers:
            self.executor(worker).close()

    def _deliver(self, worker: Worker) -> None:
        outbox = worker.outbox
        for to_gateway in outbox.gateway:
            self._on_gateway(to_gateway)
        outbox.gateway.clear()
        for address, to_prefill in outbox.prefill:
            if (prefill := self.prefills.get(address.instance)) is not None:
                assert isinstance(worker, DecodeWorker)
                prefill.on_peer(self._instance_of(worker), to_prefill)
        outbox.prefill.clear()
        for instance, to_decode in outbox.decode:
            assert isinstance(worker, PrefillWorker)
            if (decode := self.decodes.get(instance)) is not None:
                decode.on_peer(self._instance_of(worker), to_decode)
        outbox.decode.clear()

    def _instance_of(self, worker: Worker) -> int:
        pools = {**self.prefills, **self.decodes}
        return next(instance for instance, each in pools.items() if each is worker)

    def _on_gateway(self, message: ToGateway) -> None:
        self.on_message(message)
        if isinstance(message, Tokens):
            self.cached |= message.cached
        if isinstance(message, FirstToken | Tokens):
            for piece in message.choices:
                if isinstance(message, FirstToken):
                    self.first_tokens.add((piece.request_id, piece.choice))
                self.answers[piece.request_id, piece.choice].take(piece)
        elif isinstance(message, PromptLogprobs):
            self.prompts[message.request_id].take(message)
        elif isinstance(message, Preempted):
            self.num_preempted += 1
            self.begin_again(message.request_id, message.choice)
        elif isinstance(message, RequestFailed) and message.code in self.retried:
            self.begin_again(message.request_id, *choices_of(self.attempts[message.request_id][message.attempt][1]))
        elif isinstance(message, RequestFailed):
            attempts = self.attempts.get(message.request_id, [])
            assert message.request_id not in self.failures or len(attempts) > 1, "a request fails once"
            self.failures.setdefault(message.request_id, message)
            self.cancel(message.request_id)
