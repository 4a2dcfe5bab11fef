"""The requests of a decode worker: their states, and which of them gets rows and pages next.

    WAITING -> RUNNING -> FINISHED
       +----------+----> CANCELLED | FAILED

WAITING waits for its KV, RUNNING has joined the running batch. A request whose first token ends it goes from WAITING
straight to FINISHED. transfer/states.py has the states of its transfer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain, count

from decode.prefill_peers import PrefillPeers
from protocol.frame import LastMessage
from protocol.kv_layout import full_pages, pages_for
from protocol.logprobs import Logprobs
from protocol.messages_gateway import Assign, WorkerAddress
from protocol.messages_handoff import JobFinishedEarly, PrefillJob
from runtime.clock import Deadlines
from runtime.waiting_line import WaitingLine
from scheduler.planning.kv_pages import PageState
from scheduler.planning.planner import Planner
from scheduler.planning.req import first_logprobs_fault, first_tokens_fault, hidden_fault
from transfer.landing.frame_receiver import FrameReceiver
from transfer.landing.transfer import ReceiveTransfer
from transfer.plan import start_alignment
from transfer.states import TransferState, advance, least
from worker.policies import DEFAULTS, Policies
from worker.requests import Assigned, assign_fault

HANDOVER_DEADLINE_S = 120.0  # from the job to its last frame, at least
HANDOVER_S_PER_TOKEN = 0.1  # for each queued prompt token at prefill, its own included: a slow core is no fault
DOUBT_S = 2.0  # for the last frame, when all KV has landed and a damaged frame may have been the last one


class DecodeState(Enum):
    """The state of a request."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = frozenset({DecodeState.FINISHED, DecodeState.CANCELLED, DecodeState.FAILED})

TRANSITIONS: Mapping[DecodeState, frozenset[DecodeState]] = {
    DecodeState.WAITING: _ENDS | {DecodeState.RUNNING},
    DecodeState.RUNNING: _ENDS,
    **dict.fromkeys(_ENDS, frozenset()),
}


@dataclass(eq=False)
class DecodeRequest(Assigned):
    """Its choices hold rows and pages once it is reserved. `reservation` is sent to prefill; before, it is 0."""

    prefill: WorkerAddress
    order: int  # of arrival
    reservation: int = 0
    start: int = 0  # decode has the KV of the prompt's tokens before it
    state: DecodeState = DecodeState.WAITING
    transfers: tuple[ReceiveTransfer, ...] = ()  # one for each rank, once it is reserved; none if no KV is to arrive
    pages_in_place: tuple[int, ...] | None = None  # the prompt's pages, if prefill may write them in place
    deadline: float = float("inf")  # for its last frame, in seconds of the worker's clock
    late: str = ""  # the error if the deadline passes
    first_tokens: tuple[int, ...] = ()  # by choice, once its KV is delivered
    first_logprobs: tuple[Logprobs, ...] = ()  # of these, if it asks for them
    has_draft: bool = True  # prefill sends KV of the draft, too, if there is a draft
    hidden: bytes = b""  # what a draft begins with, once KV is delivered; see Join
    landing: int = 0  # ticket of the copies that delivered KV needs before it may be decoded; 0: none

    @property
    def job(self) -> PrefillJob:
        """The job for its prefill worker."""
        return PrefillJob(self.assign, self.reservation, self.pages_in_place, self.start)

    @property
    def transfer_state(self) -> TransferState:
        """The state on which the ranks of its transfer agree."""
        return least(transfer.state for transfer in self.transfers)

    @property
    def is_handed_over(self) -> bool:
        """Whether it no longer depends on its prefill worker."""
        return self.transfer_state is TransferState.DELIVERED

    def fault_of(self, told: LastMessage | JobFinishedEarly, planner: Planner) -> str | None:
        """Why it cannot begin with what prefill tells, or None."""
        fault = first_tokens_fault(told.first_tokens, len(self.reqs), planner.vocab_size)
        fault = fault or first_logprobs_fault(told.logprobs, len(self.reqs), self.assign.sampling.logprobs)
        if fault is None and isinstance(told, LastMessage):
            fault = hidden_fault(told.hidden, planner.speculation.hidden_size if self.has_draft else 0)
        return fault

    def move(self, state: DecodeState) -> None:
        """Advances the state machine."""
        self.state = advance(TRANSITIONS, self.state, state)


def reason_to_refuse(assign: Assign, planner: Planner) -> str | None:
    """Why this worker can never decode the request, in one sentence, or None."""
    num_tokens = assign.num_tokens if assign.num_left > 1 else 0  # prefill draws a single output, without decode
    return assign_fault(assign, planner, num_tokens, assign.num_choices)


class Requests:
    """The requests that do not decode yet. The states of each say which queue it is in.

    | its transfer | its queue |
    |---|---|
    | not begun | the line of its prefill worker |
    | REQUESTED, RECEIVING, or none as it gets no KV | the reservations, with a deadline |
    | DELIVERED | the staged requests, until it is RUNNING |

    The cost of a turn does not depend on their number.
    """

    def __init__(
        self,
        planner: Planner,
        receiver: FrameReceiver,
        peers: PrefillPeers,
        reservations_from: int,
        policies: Policies = DEFAULTS,
    ) -> None:
        """Reservations are numbered from `reservations_from` on."""
        self._planner = planner
        self._receiver = receiver
        self._peers = peers
        self._numbers = count(reservations_from)
        self._arrivals = count()
        self._prefix = policies.prefix(self._num_cached)
        self._lines: dict[int, WaitingLine[DecodeRequest]] = {}  # by prefill instance
        self.by_reservation: dict[int, DecodeRequest] = {}  # those whose KV is on its way
        self.late: Deadlines[DecodeRequest] = Deadlines()  # those with a reservation
        self._staged: list[DecodeRequest] = []

    def add(self, assign: Assign, prefill: WorkerAddress, now: float) -> DecodeRequest:
        """A new request, which waits for its turn."""
        request = DecodeRequest(assign, prefill, next(self._arrivals))
        line = self._lines.setdefault(prefill.instance, WaitingLine(self._prefix))
        line.add(request, now, assign.priority, resumes=assign.resumes)
        return request

    @property
    def num_in_line(self) -> int:
        """Requests without a reservation."""
        return sum(map(len, self._lines.values()))

    def depending_on(self, instance: int) -> list[DecodeRequest]:
        """The requests that still need the prefill worker `instance`."""
        return [request for request in self.waiting if request.prefill.instance == instance]

    @property
    def waiting(self) -> list[DecodeRequest]:
        """The requests that still need a prefill worker."""
        return [*chain.from_iterable(self._lines.values()), *self.by_reservation.values()]

    # ---- without a reservation ----

    def admit(self, now: float) -> list[DecodeRequest]:
        """Reserves pages and rows for waiting requests in the order of their lines, and returns these requests.

        A request without job credit lets others pass. One without pages or rows holds the rest back, so none starves.
        """
        admitted: list[DecodeRequest] = []
        while (request := self._next()) is not None and self._reserve(request, now):
            admitted.append(request)
        return admitted

    def _next(self) -> DecodeRequest | None:
        """The next request whose prefill worker takes jobs. Looks only at the first in each worker's line."""
        firsts = [
            (line.rank(first), first.order, first)
            for instance, line in self._lines.items()
            if self._peers.takes_jobs(instance) and (first := line.first()) is not None
        ]
        return min(firsts)[-1] if firsts else None

    def _reserve(self, request: DecodeRequest, now: float) -> bool:
        assign, planner, peer = request.assign, self._planner, self._peers.by_instance[request.prefill.instance]
        if request.moves_kv:
            alignment, request.has_draft = self._sent_by_prefill(request)
            key, state = request.cache_key, PageState.RESERVED
            if not planner.admit(
                request.reqs,
                request.prompt_len,
                state,
                key,
                grows=True,
                alignment=alignment,
                has_draft=request.has_draft,
            ):
                return False
            request.start = request.prompt.held.num_cached
        request.reservation = next(self._numbers)  # prefill takes jobs in this order only
        if request.moves_kv:
            pages, page_size = request.prompt.held.pages, planner.layout.page_size
            tail = pages[full_pages(request.start, page_size) : pages_for(request.prompt_len, page_size)]
            transfer = self._receiver.reserve(
                request.reservation,
                assign.attempt,
                request.prefill.instance,
                tail,
                request.prompt_len,
                peer.layout,
                in_place=peer.in_place,
                start=request.start,
            )
            request.transfers = (transfer,)
            if peer.in_place:
                request.pages_in_place = tuple(tail)

        self._leave_line(request)
        self.by_reservation[request.reservation] = request
        peer.sent(request.reservation, request.prompt_len)
        handover_s = max(HANDOVER_DEADLINE_S, HANDOVER_S_PER_TOKEN * peer.tokens_queued)
        self._expect(request, now + handover_s, f"no KV from {request.prefill.worker_id} in {handover_s:.0f} s")
        return True

    def _num_cached(self, request: DecodeRequest) -> int:
        """Tokens of its prompt that it would find cached, if it got its pages now."""
        alignment, has_draft = self._sent_by_prefill(request)
        return self._planner.num_cached(
            request.prompt, request.cache_key, grows=True, alignment=alignment, has_draft=has_draft
        )

    def _sent_by_prefill(self, request: DecodeRequest) -> tuple[int, bool]:
        """At a multiple of how many tokens what its prefill worker sends may begin, and whether KV of the draft is in
        it."""
        ours, theirs = self._planner.layout, self._peers.by_instance[request.prefill.instance].layout
        theirs = theirs or ours
        return start_alignment(ours.page_size, theirs.page_size), len(theirs.groups) == len(ours.groups)

    def _leave_line(self, request: DecodeRequest) -> None:
        if (line := self._lines.get(request.prefill.instance)) is not None:
            line.remove(request)
            if not line:
                del self._lines[request.prefill.instance]

    # ---- with a reservation ----

    def doubt(self, request: DecodeRequest, now: float) -> None:
        """Its KV has landed, and a damaged frame may have been the last one: waits for another one, but not long."""
        late = f"the last frame from {request.prefill.worker_id} has not come, and one was damaged on its way"
        self._expect(request, now + DOUBT_S, late)

    def _expect(self, request: DecodeRequest, by: float, late: str) -> None:
        """Sets the deadline of a reserved request, unless it is earlier already. `late` is the error if it passes."""
        if by < request.deadline:
            request.deadline, request.late = by, late
            self.late.set(request, by)

    def close(self, request: DecodeRequest, cancel_job: bool = False) -> None:
        """No more frames land: KV is delivered, or not needed any more. `cancel_job`: prefill may still work on it."""
        self._leave_line(request)
        if self.by_reservation.pop(request.reservation, None) is not None:
            self.late.drop(request)
            self._receiver.release(request.reservation)
            self._peers.closed(request.prefill, request.reservation, cancel_job)

    # ---- delivered, and the end ----

    def deliver(self, request: DecodeRequest, last: LastMessage, on_device: bool) -> None:
        """Its KV is whole: owns its pages, and starts the copies to the choices and to the device."""
        self.close(request)
        self._planner.kv_manager.own(req.held for req in request.reqs)

        first, *others = request.reqs
        page_size = self._planner.layout.page_size
        landed = first.held.pages[full_pages(request.start, page_size) : pages_for(request.prompt_len, page_size)]
        in_twin = () if on_device else landed
        request.landing = self._planner.copies.fork(first, [req for req in others if req.finish is None], in_twin)
        request.first_tokens, request.first_logprobs = last.first_tokens, last.logprobs
        request.hidden = last.hidden
        self._staged.append(request)

    @property
    def is_staging(self) -> bool:
        """Whether KV of a request is being copied, also of one that has ended during the copy."""
        return bool(self._staged)

    def take_staged(self, may_decode: Callable[[DecodeRequest], bool]) -> list[DecodeRequest]:
        """The delivered requests whose KV is on the device by now, and that `may_decode`. Each is returned once, unless
        it has ended."""
        staged, self._staged, whole = self._staged, [], list[DecodeRequest]()
        for request in staged:
            is_whole = self._planner.copies.is_over(request.landing)
            has_ended = request.state is not DecodeState.WAITING
            (whole if is_whole and (has_ended or may_decode(request)) else self._staged).append(request)
        whole = [request for request in whole if request.state is DecodeState.WAITING]
        for request in whole:
            if request.has_draft and (seated := [req for req in request.reqs if req.holding is not None]):
                self._planner.kv_manager.keep(seated[0].held, request.cache_key)
        return whole

    def end(self, request: DecodeRequest, state: DecodeState) -> None:
        """A request ends without having finished: stops its transfer and its job, and gives everything back once."""
        request.move(state)
        self.close(request, cancel_job=True)
        for req in request.reqs:
            self._planner.release(req, partial(self._receiver.may_be_written, request.reservation))
