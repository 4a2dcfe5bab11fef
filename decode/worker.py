"""The decode worker: reserves, sends jobs to prefill, receives KV, merges PREBUILT batches, decodes, streams tokens.

    Assign -> RESERVING -> PrefillJob -> KV frames -> KvDelivered -> PREBUILT batch -> running batch -> Tokens

From Assign on it alone decides whether a request goes on or fails. requests.py and transfer/states.py have the states
of a request.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

from decode.prefill_peers import PrefillPeers
from decode.requests import DecodeRequest, DecodeState, Requests, reason_to_refuse
from protocol.errors import (
    BadRequest,
    BatonError,
    InternalError,
    KvNotDelivered,
    LayoutMismatch,
    WorkerLost,
    error_from_code,
)
from protocol.fingerprint import Fingerprint
from protocol.frame import LastMessage
from protocol.logprobs import Logprobs
from protocol.messages_gateway import Assign, CancelRequest, PeerLost, ToWorker, WorkerAddress
from protocol.messages_handoff import (
    HelloAccepted,
    HelloRefused,
    JobCredit,
    JobFailed,
    JobFinishedEarly,
    KvDelivered,
    ToDecode,
)
from protocol.worker_facts import WorkerStats
from runtime.clock import Clock
from scheduler.planning.launched import Drawn, Launched
from scheduler.planning.overlap_loop import OverlapLoop
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from transfer.landing.frame_receiver import FrameReceiver
from transfer.landing.transfer import (
    CreditReturned,
    FirstFrame,
    LastInDoubt,
    TransferEvent,
    TransferFailed,
)
from worker.learning import Learning
from worker.policies import DEFAULTS, Policies
from worker.requests import Outbox, PhaseTimes, TokenStream, load_of
from worker.served import Served


class DecodeWorker:
    """The core of one decode process: messages in, turns, messages out."""

    def __init__(
        self,
        planner: Planner,
        receiver: FrameReceiver,
        address: WorkerAddress,
        fingerprint: Fingerprint,
        clock: Clock,
        policies: Policies = DEFAULTS,
        *,
        reservations_from: int,
        may_lack_draft: bool = False,
    ) -> None:
        """Reservations are numbered from `reservations_from` on. `may_lack_draft`: see Hello."""
        self.outbox = Outbox()
        self._phases = PhaseTimes(clock, address.worker_id)
        self.planner = planner
        self._receiver = receiver
        self._clock = clock
        self.loop = OverlapLoop(planner, self, policies.overlap)
        self._peers = PrefillPeers(address, planner.layout, fingerprint, receiver, self.outbox, clock, may_lack_draft)
        self.served: Served[DecodeRequest] = Served(self, policies)
        self._requests = Requests(planner, receiver, self._peers, reservations_from, policies)
        self._learning: Learning[DecodeRequest] = Learning(planner, self.served.by_key.values)
        self._tokens = TokenStream(planner, self.served.of, self._phases, ("", "first decode"))

    # ---- messages ----

    def on_gateway(self, message: ToWorker) -> None:
        """Takes Assign, CancelRequest and PeerLost. Other messages are the loop's."""
        if isinstance(message, Assign):
            self._on_assign(message)
        elif isinstance(message, CancelRequest):
            self._on_cancel(message)
        elif isinstance(message, PeerLost):
            self._lose_peer(message)

    def on_peer(self, instance: int, message: ToDecode) -> None:
        """Takes a message from the prefill worker `instance`."""
        peer = self._peers.by_instance.get(instance)
        if peer is None:
            return

        if isinstance(message, HelloAccepted | HelloRefused):
            if reason := self._peers.answered(peer, message):
                self._fail_all(instance, LayoutMismatch(reason))  # later requests fail in _on_assign
        elif isinstance(message, JobCredit):
            peer.settle(message.reservation)
        else:
            self._receiver.stopped(message.reservation, instance)
            request = self._requests.by_reservation.get(message.reservation)
            if request is None or request.prefill.instance != instance:
                return
            if isinstance(message, JobFailed):
                self._requests.close(request)
                self.served.fail(request, error_from_code(message.code, message.message))
            elif isinstance(message, JobFinishedEarly):
                self._on_finished_early(request, message)

    def on_session_lost(self, instance: int) -> None:
        """Fails the requests on their way from a prefill worker whose session is lost, and greets it again."""
        if (peer := self._peers.lose(instance)) is not None:
            lost = KvNotDelivered(f"the session with prefill worker {peer.address.worker_id} was lost")
            for request in self._requests.depending_on(instance):
                if request.reservation in self._requests.by_reservation:
                    self.served.fail(request, lost)
            self._peers.greet(peer.address)

    def reset(self) -> None:
        """Cancels everything: the gateway has restarted and waits for nothing."""
        self.served.drop_all()
        self._peers.forget_all()  # the new gateway will not report peers that died with the old one

    def turn(self) -> bool:
        """One turn of the loop; never blocks. False when there was nothing to do."""
        received = self._receive()
        self._fail_late(self._clock.now())
        self.admit()
        self._prebuild()
        progressed = self.loop.turn()
        self._tokens.flush(self.outbox)
        return progressed or received

    @property
    def busy(self) -> bool:
        """Whether a launch is in flight, or a device is checking or copying KV."""
        return self.loop.busy or self._receiver.is_checking or self._requests.is_staging

    def stats(self) -> WorkerStats:
        """Load for the heartbeat."""
        waiting = self._requests.waiting
        num_tokens = sum(request.prompt_len for request in waiting)
        load = load_of(self.planner, self._phases, len(waiting), num_tokens, self._receiver.counters)
        return replace(load, transfer=self._peers.backends)

    # ---- loop: what the overlap loop asks of a role ----

    def launch(self) -> bool:
        """Launches the choices that decode, which PREBUILT batches have joined."""
        for req in self._tokens.preempt(self.planner.make_room()):
            self._finish(req)
        decodes = self.planner.decodes()
        if decodes:
            self.planner.launch(decodes=decodes)
        return bool(decodes)

    def process(self, launched: Launched, drawn: Drawn) -> None:
        """Appends the tokens to their choices."""
        for req, run in drawn:
            self._take_tokens(req, run, launched.next_logprobs(req))

    def failed(self, reqs: Sequence[Req], error: BatonError) -> None:
        """Fails the requests of a launch that raised."""
        self.served.fail_those(reqs, error)

    # ---- from Assign to PrefillJob ----

    @property
    def num_waiting(self) -> int:
        """Requests without a reservation."""
        return self._requests.num_in_line

    def admit(self) -> None:
        """Reserves memory for requests that wait, and sends their jobs."""
        for request in self._requests.admit(self._clock.now()):
            self._phases.stamp(request, "reserved, job sent")
            self.outbox.prefill.append((request.prefill, request.job))

    def ended(self, request: DecodeRequest, error: BatonError | None) -> None:
        """Stops its transfer and its job, gives everything back once, and tells the gateway of an error."""
        if error is not None:
            self.outbox.fail(request.assign.key, error)
        self._requests.end(request, DecodeState.CANCELLED if error is None else DecodeState.FAILED)

    def _on_assign(self, assign: Assign) -> None:
        if assign.key in self.served.by_key:
            return
        error = self.served.refusal(assign, reason_to_refuse(assign, self.planner))
        if assign.prefill is None or error is not None:
            self.outbox.fail(assign.key, error or BadRequest("prefill: got none, expected a prefill worker's address"))
            return

        request = self._requests.add(assign, assign.prefill, self._clock.now())
        self.served.take(request)
        self._learning.begin(request)  # it is over long before KV arrives
        self._phases.stamp(request, "queued at decode")
        self._peers.greet(assign.prefill)
        if (peer := self._peers.by_instance.get(assign.prefill.instance)) is not None and peer.refusal:
            self.served.fail(request, LayoutMismatch(peer.refusal))

    # ---- from the first frame to the running batch ----

    def _receive(self) -> bool:
        events = self._receiver.poll()
        for event in events:
            if isinstance(event, CreditReturned):
                self._peers.return_credit(event)
            elif isinstance(event, TransferEvent) and (request := self._requests.by_reservation.get(event.reservation)):
                self._on_transfer(request, event)
        return bool(events)

    def _fail_late(self, now: float) -> None:
        for request in self._requests.late.due(now):
            self.served.fail(request, KvNotDelivered(request.late))
        self._peers.ask_again(now)
        for instance, reason in self._peers.give_up(now):
            self._fail_all(instance, reason)

    def _on_transfer(self, request: DecodeRequest, event: TransferEvent) -> None:
        if isinstance(event, FirstFrame):
            self._phases.stamp(request, "first frame landed")
        elif isinstance(event, TransferFailed):
            self.served.fail(request, KvNotDelivered(f"KV transfer failed: {event.reason}"))
        elif isinstance(event, LastInDoubt):
            self._requests.doubt(request, self._clock.now())
        elif self._expects(request, event.last):
            self._phases.stamp(request, "KV delivered")
            self._requests.deliver(request, event.last, event.on_device)
            self.outbox.prefill.append((request.prefill, KvDelivered(request.reservation)))

    def _expects(self, request: DecodeRequest, told: LastMessage | JobFinishedEarly) -> bool:
        """Takes prefill's stamps. False if what the request begins with makes no sense; then the request fails."""
        if (fault := request.fault_of(told, self.planner)) is not None:
            self.served.fail(request, InternalError(fault))
            return False
        request.stamps.extend(told.stamps)
        request.num_cached = told.num_cached
        return True

    def _prebuild(self) -> None:
        """Choices whose KV is on the device join the running batch, unless their first token has ended them."""
        for request in self._requests.take_staged(self._learning.is_over):
            if (fault := self._learning.fault(request)) is not None:
                self.served.fail(request, fault)
                continue
            self._take_first_tokens(request, request.first_tokens, request.first_logprobs)
            if going_on := [req for req in request.reqs if req.finish is None]:
                request.move(DecodeState.RUNNING)
                self.planner.join(going_on, request.hidden)
                self._phases.stamp(request, "ready to decode")

    def _on_finished_early(self, request: DecodeRequest, message: JobFinishedEarly) -> None:
        if self._expects(request, message):
            self._requests.close(request)
            self._take_first_tokens(request, message.first_tokens, message.logprobs)
            if request.state is DecodeState.WAITING:
                self.served.fail(request, InternalError("prefill ended a request whose first token does not end it"))

    # ---- tokens and ends ----

    def _take_first_tokens(
        self, request: DecodeRequest, first_tokens: tuple[int, ...], logprobs: tuple[Logprobs, ...]
    ) -> None:
        """Counts them as outputs. Releases choices that were cancelled during the transfer into their pages."""
        for req, token, scores in zip(request.reqs, first_tokens, logprobs or repeat(None), strict=False):
            if req.finish is None:
                req.num_sampled += 1
                self._take_tokens(req, (token,), scores)
            else:
                self.planner.release(req)

    def _take_tokens(self, req: Req, run: tuple[int, ...], logprobs: Logprobs | None) -> None:
        if self._tokens.add(req, run, logprobs):
            self._finish(req)

    def _finish(self, req: Req) -> None:
        self.served.finish(req).move(DecodeState.FINISHED)

    def _on_cancel(self, message: CancelRequest) -> None:
        for req in self.served.cancel((message.request_id, message.attempt), message.choice):
            if self.served.of[req].is_handed_over:
                self.planner.release(req)

    def _lose_peer(self, message: PeerLost) -> None:
        if (peer := self._peers.lose(message.instance)) is not None:
            self._fail_all(message.instance, WorkerLost(f"prefill worker {peer.address.worker_id} is lost"))
        self._peers.never_ask(message.instance)  # not even about those that have just failed

    def _fail_all(self, instance: int, error: BatonError) -> None:
        """Fails requests that depend on the prefill worker `instance`. Delivered requests go on."""
        for request in self._requests.depending_on(instance):
            self.served.fail(request, error)
