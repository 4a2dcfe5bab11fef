"""The unified worker: prefill and decode in one process, without a transfer.

    Assign -> waiting -> chunks mixed with the running batch -> running batch -> Tokens

It is the baseline for disaggregation.
"""

from collections.abc import Sequence

from protocol.errors import BatonError
from protocol.messages_gateway import Assign, CancelRequest, ToWorker
from protocol.worker_facts import WorkerStats
from runtime.clock import Clock
from scheduler.planning.launched import Drawn, Launched
from scheduler.planning.overlap_loop import OverlapLoop
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from worker.policies import DEFAULTS, Policies, prompts_first
from worker.prompts import Prompts
from worker.requests import Assigned, Outbox, PhaseTimes, TokenStream, assign_fault, load_of
from worker.served import Served


class UnifiedWorker:
    """The core of one unified process: messages in, turns, messages out.

    A prompt is computed in the row and pages of its request's first choice.
    """

    def __init__(self, planner: Planner, worker_id: str, clock: Clock, policies: Policies = DEFAULTS) -> None:
        self.outbox = Outbox()
        self._phases = PhaseTimes(clock, worker_id)
        self.planner = planner
        self._policies = policies
        self._prompts_were_last = False
        self.loop = OverlapLoop(planner, self, policies.overlap)
        self.served: Served[Assigned] = Served(self, policies)
        self.prompts: Prompts[Assigned] = Prompts(planner, clock, policies, self.served, self._seat, self._num_cached)
        self._tokens = TokenStream(planner, self.served.of, self._phases, ("first token", "first decode"))

    # ---- messages ----

    def on_gateway(self, message: ToWorker) -> None:
        """Takes Assign and CancelRequest. A unified worker has no peers to lose."""
        if isinstance(message, Assign):
            self._on_assign(message)
        elif isinstance(message, CancelRequest):
            self._on_cancel(message)

    def reset(self) -> None:
        """Ends every request: the gateway has restarted and waits for nothing."""
        self.served.drop_all()

    def turn(self) -> bool:
        """One turn of the loop; never blocks. False when there was nothing to do."""
        self.admit()
        progressed = self.loop.turn()
        self._tokens.flush(self.outbox)
        return progressed

    @property
    def busy(self) -> bool:
        """Whether a launch is in flight."""
        return self.loop.busy

    def stats(self) -> WorkerStats:
        """Load for the heartbeat."""
        num_waiting = self.prompts.num_waiting + len(self.prompts.unfinished)
        return load_of(self.planner, self._phases, num_waiting, self.prompts.tokens_left)

    # ---- loop: what the overlap loop asks of a role ----

    def launch(self) -> bool:
        """Launches the choices that decode. Chunks of prompts fill the rest of the launch, or take turns with them.

        Choices whose last chunk is launched decode from the next launch on. The device relays their first tokens.
        """
        self.admit()  # what the results of this turn have made room for
        for req in self._tokens.preempt(self.planner.make_room()):
            self.prompts.drop(self.served.finish(req))
        decodes = self.planner.decodes()
        chunks = self.prompts.next_chunks(len(decodes))
        if not chunks and not decodes:
            return False

        paused: tuple[Req, ...] = ()
        if not self._policies.enable_mixed_chunk:
            self._prompts_were_last = prompts_first(bool(chunks), bool(decodes), self._prompts_were_last)
            if self._prompts_were_last:
                decodes, paused = (), decodes
            else:
                chunks = ()

        asked = [self.served.of[chunk.req] for chunk in chunks]
        for chunk, request in zip(chunks, asked, strict=True):
            if chunk.start == request.num_cached:
                self._phases.stamp(request, "prefill start")
        self.planner.launch(chunks, decodes, paused=paused)
        for chunk, request in zip(chunks, asked, strict=True):
            if chunk.samples:
                self._fork(request)
        return True

    def process(self, launched: Launched, drawn: Drawn) -> None:
        """Appends the tokens to their choices."""
        self.outbox.tell_prompts(launched, self.served.of)
        for req, run in drawn:
            request = self.served.of[req]
            if len(req.outputs) == req.num_replayed:
                self.prompts.computed(request)
                if req is request.prompt:
                    self.planner.kv_manager.keep(req.held, request.cache_key)
            if self._tokens.add(req, run, launched.next_logprobs(req)):
                self.served.finish(req)

    def failed(self, reqs: Sequence[Req], error: BatonError) -> None:
        """Fails the requests of a launch that raised."""
        self.served.fail_those(reqs, error)

    # ---- requests ----

    @property
    def num_waiting(self) -> int:
        """Requests without memory."""
        return self.prompts.num_waiting

    def admit(self) -> None:
        """Gives memory to requests that wait. Choices that were cancelled meanwhile need none."""
        for request in self.prompts.admit():
            for req in request.reqs[1:]:
                if req.finish is not None:
                    self.planner.release(req)

    def ended(self, request: Assigned, error: BatonError | None) -> None:
        """Gives everything back once, and tells the gateway of an error."""
        if error is not None:
            self.outbox.fail(request.assign.key, error)
        self.prompts.drop(request)
        for req in request.reqs:
            self.planner.release(req)

    def _on_assign(self, assign: Assign) -> None:
        if assign.key in self.served.by_key:
            return
        fault = assign_fault(assign, self.planner, assign.num_tokens, assign.num_choices)
        if error := self.served.refusal(assign, fault):
            self.outbox.fail(assign.key, error)
            return
        request = Assigned(assign)
        self.served.take(request)
        self._phases.stamp(request, "queued")
        self.prompts.add(request)

    def _seat(self, request: Assigned) -> bool:
        return self.planner.admit(request.reqs, request.prompt_len, key=request.wanted_cached, grows=True)

    def _num_cached(self, request: Assigned) -> int:
        return self.planner.num_cached(request.prompt, request.wanted_cached, grows=True)

    def _fork(self, request: Assigned) -> None:
        """Copies the prompt's partial page to the other choices, and lets all choices join the running batch."""
        first, *others = request.reqs
        self.planner.copies.fork(first, [req for req in others if req.finish is None])
        if first.finish is not None:  # cancelled while the others needed the prompt
            self.planner.release(first)
        self.planner.join(request.reqs)

    def _on_cancel(self, message: CancelRequest) -> None:
        for req in self.served.cancel((message.request_id, message.attempt), message.choice):
            request = self.served.of[req]
            if req is not request.prompt or not request.prompt_left:  # the other choices need the prompt's memory
                self.planner.release(req)
