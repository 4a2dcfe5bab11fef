"""The unified worker: prefill and decode in one process, without a transfer.

    Assign -> waiting -> chunks mixed with the running batch -> running batch -> Tokens

It is the baseline for disaggregation.
"""

from collections.abc import Sequence

from protocol.errors import BadRequest, BatonError
from protocol.messages_gateway import Assign, CancelRequest, ToWorker
from protocol.worker_facts import WorkerStats
from runtime.clock import Clock
from runtime.waiting_line import WaitingLine
from scheduler.planning.launched import Drawn, Launched
from scheduler.planning.overlap_loop import OverlapLoop
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from worker.learning import Learning
from worker.policies import DEFAULTS, Policies, prompts_first
from worker.requests import (
    Assigned,
    Outbox,
    PhaseTimes,
    TokenStream,
    assign_fault,
    going_on,
    is_too_early,
    load_of,
    next_chunks,
)


class UnifiedWorker:
    """The core of one unified process: messages in, steps, messages out.

    A prompt is computed in the row and pages of its request's first choice.
    """

    def __init__(
        self,
        planner: Planner,
        worker_id: str,
        clock: Clock,
        *,
        overlap: bool,
        chunk_size: int,
        policies: Policies = DEFAULTS,
    ) -> None:
        self.outbox = Outbox()
        self._clock = clock
        self._phases = PhaseTimes(clock, worker_id)
        self.planner = planner
        self._chunk_size, self._policies = chunk_size, policies
        self._prompts_were_last = False
        self.loop = OverlapLoop(planner, self, overlap)
        self._requests: dict[tuple[str, int], Assigned] = {}
        self._waiting: WaitingLine[Assigned] = WaitingLine(policies.prefix(planner))
        self._learning: Learning[Assigned] = Learning(planner, self._requests.values)
        self._computing: list[Assigned] = []  # no more than there are rows
        self._tokens = TokenStream(planner, self._requests, self._phases, ("first token", "first decode"))

    # ---- messages ----

    def on_gateway(self, message: ToWorker) -> None:
        """Takes Assign and CancelRequest. A unified worker has no peers to lose."""
        if isinstance(message, Assign):
            self._on_assign(message)
        elif isinstance(message, CancelRequest):
            self._on_cancel(message)

    def reset(self) -> None:
        """Ends every request: the gateway has restarted and waits for nothing."""
        for request in list(self._requests.values()):
            self._end(request)

    def step(self) -> bool:
        """One turn of the loop; never blocks. False when there was nothing to do."""
        self._learning.settle(self._queue, self._fail)
        self._admit()
        progressed = self.loop.step()
        self._tokens.flush(self.outbox)
        return progressed

    @property
    def busy(self) -> bool:
        """Whether a launch is in flight."""
        return self.loop.busy

    def stats(self) -> WorkerStats:
        """Load for the heartbeat."""
        queued = [*self._waiting, *self._computing]
        num_waiting = len(queued) + len(self._learning)
        return load_of(self.planner, self._phases, num_waiting, sum(request.prompt_left for request in queued))

    # ---- loop: what the overlap loop asks of a role ----

    def launch(self) -> bool:
        """Launches the choices that decode. Chunks of prompts fill the rest of the launch, or take turns with them.

        Choices whose last chunk is launched decode from the next launch on. The device relays their first tokens.
        """
        self._admit()  # what the results of this turn have made room for
        for req in self._tokens.retract(self.planner.make_room()):
            del self._requests[req.key]
        decodes = self.planner.decodes()
        decode_tokens = self.planner.speculation.most_tokens(len(decodes))
        chunks = next_chunks(
            going_on(self._computing, self.planner),
            self._chunk_size,
            decode_tokens if self._policies.enable_mixed_chunk else 0,
            self._policies.launch_tokens(self._chunk_size, decode_tokens),
            lookahead=self.planner.book.lookahead,
        )
        if not chunks and not decodes:
            return False

        resting: tuple[Req, ...] = ()
        if not self._policies.enable_mixed_chunk:
            self._prompts_were_last = prompts_first(bool(chunks), bool(decodes), self._prompts_were_last)
            if self._prompts_were_last:
                decodes, resting = (), decodes
            else:
                chunks = ()

        asked = [self._requests[chunk.req.key] for chunk in chunks]
        for chunk, request in zip(chunks, asked, strict=True):
            if chunk.start == request.num_cached:
                self._phases.stamp(request, "prefill start")
        self.planner.launch(chunks, decodes, resting=resting)
        for chunk, request in zip(chunks, asked, strict=True):
            if chunk.samples:
                self._computing.remove(request)
                self._fork(request)
        return True

    def process(self, launched: Launched, drawn: Drawn) -> None:
        """Appends the tokens to their choices."""
        self.outbox.tell_prompts(launched, lambda req: req.key in self._requests)
        for req, run in drawn:
            request = self._requests[req.key]
            if req is request.prompt and len(req.outputs) == req.num_replayed:
                self.planner.book.keep(req.held, request.cache_key)
            if self._tokens.add(req, run, launched.next_logprobs(req)):
                del self._requests[req.key]

    def failed(self, reqs: Sequence[Req], error: BatonError) -> None:
        """Fails the requests of a launch that raised."""
        for req in reqs:
            if (request := self._requests.get(req.key)) is not None:
                self._fail(request, error)

    # ---- requests ----

    def _on_assign(self, assign: Assign) -> None:
        if assign.key in self._requests:
            return
        reason = assign_fault(assign, self.planner, assign.num_tokens, assign.num_choices)
        if reason is not None:
            self.outbox.fail(assign.key, BadRequest(reason))
            return

        if self._num_waiting >= self._policies.max_queued_requests:
            self._admit()  # many messages are read in one turn, and there may be room for their requests
        if full := self._policies.refusal(assign, self._num_waiting):
            self.outbox.fail(assign.key, full)
            return

        request = self._requests[assign.key] = Assigned(assign)
        self._phases.stamp(request, "queued")
        if not self._learning.hold(request):
            self._queue(request)

    def _queue(self, request: Assigned) -> None:
        assign = request.assign
        self._waiting.add(request, self._clock.now(), assign.priority, resumes=assign.resumes)

    @property
    def _num_waiting(self) -> int:
        return len(self._waiting) + len(self._learning)

    def _admit(self) -> None:
        """Admits requests in the order of the line. One that is too early, or does not fit yet, holds the later ones
        back."""
        if not self._waiting:
            return
        decode_tokens = self.planner.speculation.most_tokens(len(self.planner.decodes()))
        budget = self._policies.launch_tokens(self._chunk_size, decode_tokens)
        while (request := self._waiting.first()) is not None:
            if is_too_early(request, self._being_computed(), self.planner, self._chunk_size, budget):
                return
            if not self.planner.admit(request.reqs, request.prompt_len, key=request.wanted_cached, grows=True):
                return

            self._waiting.remove(request)
            request.num_cached = request.prompt.held.num_cached
            for req in request.reqs[1:]:
                if req.finish is not None:  # cancelled while it waited
                    self.planner.release(req)
            self._computing.append(request)
            self.planner.replays.begin(request.prompt)

    def _being_computed(self) -> list[Assigned]:
        """Those whose prompts are not in the cache yet."""
        in_flight = [chunk.req for launched in self.planner.in_flight for chunk in launched.chunks]
        last_chunks = [self._requests.get(req.key) for req in in_flight]
        return list(dict.fromkeys((*self._computing, *filter(None, last_chunks))))

    def _fork(self, request: Assigned) -> None:
        """Copies the prompt's partial page to the other choices, and lets all choices join the running batch."""
        first, *others = request.reqs
        self.planner.copies.fork(first, [req for req in others if req.finish is None])
        if first.finish is not None:  # cancelled while the others needed the prompt
            self.planner.release(first)
        self.planner.join(request.reqs)

    def _on_cancel(self, message: CancelRequest) -> None:
        request = self._requests.get((message.request_id, message.attempt))
        if request is None:
            return
        cancelled = request.cancel(message.choice)
        if request.has_ended:
            self._end(request)
            return

        for req in cancelled:
            is_prompt = req is request.prompt and (request in self._waiting or request in self._computing)
            if not is_prompt:  # the other choices still need the prompt's row and pages
                self.planner.release(req)

    def _fail(self, request: Assigned, error: BatonError) -> None:
        self.outbox.fail(request.key, error)
        self._end(request)

    def _end(self, request: Assigned) -> None:
        """Ends a request that does not finish. Gives everything back once."""
        self._learning.drop(request)
        self._waiting.remove(request)
        if request in self._computing:
            self._computing.remove(request)
        request.cancel()
        for req in request.reqs:
            self.planner.release(req)
        del self._requests[request.key]
