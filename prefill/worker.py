"""The prefill worker: takes jobs from decode workers, computes prompts in chunks, ships KV layer by layer.

    PrefillJob -> waiting -> chunks (overlap loop) -> FirstToken to the gateway
                                  \\-> each layer as it becomes final -> decode -> KvDelivered -> pages retired

It decides what to compute next and when pages are given back. transfer/states.py has a job's states.
"""

from collections.abc import Sequence

from prefill.decode_peers import DecodePeers
from prefill.jobs import Job, first_tokens
from protocol.errors import BadRequest, BatonError, KvNotDelivered, PrefillQueueFull, WireError
from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import PeerLost, ToWorker, WorkerAddress
from protocol.messages_handoff import (
    CancelJob,
    DataCredit,
    Hello,
    JobCredit,
    JobFailed,
    JobStopped,
    KvDelivered,
    PrefillJob,
    ToPrefill,
)
from protocol.worker_facts import WorkerStats
from runtime.clock import Clock, Deadlines
from runtime.waiting_line import WaitingLine
from scheduler.planning.launched import Drawn, Launched
from scheduler.planning.overlap_loop import OverlapLoop
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import Target
from transfer.states import TransferState
from worker.learning import Learning
from worker.policies import DEFAULTS, Policies
from worker.requests import Outbox, PhaseTimes, assign_fault, going_on, is_too_early, next_chunks

# At decode a level of priority is worth a second. Here jobs have a deadline, and few wait: it is worth less.
JOB_LEVEL_S = 0.1
DELIVERY_DEADLINE_S = 600.0  # from making the last frame to KvDelivered; decode gives up long before


class PrefillWorker:
    """The core of one prefill process: messages in, steps, messages out."""

    def __init__(
        self,
        planner: Planner,
        sender: FrameSender,
        address: WorkerAddress,
        fingerprint: Fingerprint,
        clock: Clock,
        *,
        overlap: bool,
        chunk_size: int,
        policies: Policies = DEFAULTS,
    ) -> None:
        self.outbox = Outbox()
        self._phases = PhaseTimes(clock, address.worker_id)
        self.planner = planner
        self._sender = sender
        self._clock = clock
        self._chunk_size, self._policies = chunk_size, policies
        self.loop = OverlapLoop(planner, self, overlap)

        self._peers = DecodePeers(address, planner.layout, fingerprint, sender)
        self._jobs: dict[tuple[int, int], Job] = {}  # by (decode instance, reservation)
        self._job_of: dict[Req, Job] = {}  # by the choices' Req
        self._waiting: WaitingLine[Job] = WaitingLine(policies.prefix(planner), JOB_LEVEL_S)
        self._learning: Learning[Job] = Learning(planner, self._jobs.values)
        self._computing: dict[Job, None] = {}  # no more than there are rows
        self._late: Deadlines[Job] = Deadlines()

    # ---- messages ----

    def on_gateway(self, message: ToWorker) -> None:
        """PeerLost drops every job of a decode worker. Jobs and their cancels come from decode, not the gateway."""
        if isinstance(message, PeerLost):
            self._peers.refuse(message.instance)
            self.on_session_lost(message.instance)

    def on_peer(self, instance: int, message: ToPrefill) -> None:
        """Takes a message from the decode worker `instance`."""
        if isinstance(message, Hello):
            if instance in self._peers.by_instance:
                self.on_session_lost(instance)  # a decode worker that greets again has forgotten its jobs
            self.outbox.decode.append((instance, self._peers.answer(instance, message)))
        elif isinstance(message, PrefillJob):
            self._on_job(instance, message)
        elif isinstance(message, DataCredit):
            self._sender.add_credit(instance, message.reservation, message.num_bytes)
        else:
            self._on_end(instance, message)

    def on_session_lost(self, instance: int) -> None:
        """Drops the jobs of a decode worker whose session is lost. It will greet again and no longer waits for them."""
        self._peers.forget(instance)
        for job in [job for (owner, _), job in self._jobs.items() if owner == instance]:
            self._end(job)

    def reset(self) -> None:
        """Drops every peer and job: the gateway has restarted. Decode workers that still live greet again.

        The new gateway will not report peers that died with the old one.
        """
        for instance in list(self._peers.by_instance):
            self.on_session_lost(instance)
        self._peers.refuse_none()

    def step(self) -> bool:
        """One turn of the loop; never blocks. False when there was nothing to do."""
        self._sender.pump()
        self._fail_hopeless(self._clock.now())
        self._learning.settle(self._queue, self._fail)
        self._admit()
        progressed = self.loop.step()
        for launched in self.planner.in_flight:
            self._ship_layers(launched)
        return progressed

    @property
    def busy(self) -> bool:
        """Whether a launch is in flight, or a device is moving KV."""
        return self.loop.busy or self._sender.is_moving

    def stats(self) -> WorkerStats:
        """Load for the heartbeat."""
        return WorkerStats(
            kv_pages=self.planner.book.counts(),
            running=len(self._jobs) - self._num_waiting,
            waiting=self._num_waiting,
            queued_prompt_tokens=sum(job.prompt_left for job in self._jobs.values()),
            num_launches=self.planner.num_launches,
            counters={**self._sender.counters, "idle_launches": self.planner.num_idle},
            times=self._phases.spreads,
        )

    # ---- loop: what the overlap loop asks of a role ----

    def launch(self) -> bool:
        """Launches chunks of the prompts that were admitted first, up to the chunk size and the budget of a launch."""
        self._admit()  # what the results of this turn have made room for
        jobs = [job for job in going_on(self._computing, self.planner) if job.prompt_left]
        budget, lookahead = self._policies.max_prefill_tokens, self.planner.book.lookahead
        chunks = next_chunks(jobs, self._chunk_size, max_tokens=budget, lookahead=lookahead)
        if not chunks:
            return False
        for chunk in chunks:
            job = self._job_of[chunk.req]
            if chunk.start == job.num_cached:
                self._phases.stamp(job, "prefill start")
        self.planner.launch(chunks, relay=False, ships=True)
        return True

    def process(self, launched: Launched, drawn: Drawn) -> None:
        """Ships the last layers, sends first tokens to the gateway, and finishes transfers of computed prompts."""
        self._ship_layers(launched)
        self.outbox.tell_prompts(launched, self._job_of.__contains__)
        for job, tokens in first_tokens(launched, drawn, self._job_of).items():
            self._phases.stamp(job, "prompt computed", launched.computed_at)
            self._on_first_tokens(job, tokens)

    def failed(self, reqs: Sequence[Req], error: BatonError) -> None:
        """Fails the jobs of a launch that raised."""
        for req in reqs:
            if (job := self._job_of.get(req)) is not None:
                self._fail(job, error)

    # ---- messages, one by one ----

    def _on_job(self, instance: int, message: PrefillJob) -> None:
        peer = self._peers.by_instance.get(instance)
        if peer is None:
            return  # a stranger: no state is created for it
        assign, length = message.assign, len(message.assign.prompt_ids)
        reason = assign_fault(assign, self.planner, length, 1, message.reservation)
        if reason is not None:
            self.outbox.decode.append((instance, JobFailed(message.reservation, BadRequest.code, reason)))
            return
        if message.reservation <= peer.newest:
            return  # a repeat: its job may have ended, and other requests may own its pages

        peer.newest = message.reservation
        if self._num_waiting >= self._policies.max_queued_requests:
            self._admit()  # many messages are read in one turn, and there may be room for their jobs
        if full := self._policies.refusal(assign, self._num_waiting, PrefillQueueFull):
            self.outbox.decode.append((instance, JobFailed(message.reservation, full.code, full.message)))
            return

        target = Target(peer.address, message.reservation, assign.attempt, message.pages, message.start)
        job = Job(assign, target)
        job.to_host = self._sender.reads_host(job.target)
        self._jobs[instance, message.reservation] = job
        self._job_of.update(dict.fromkeys(job.reqs, job))
        self._phases.stamp(job, "job received")
        if not self._learning.hold(job):
            self._queue(job)

    def _queue(self, job: Job) -> None:
        assign = job.assign
        self._waiting.add(job, self._clock.now(), assign.priority, resumes=assign.resumes)

    @property
    def _num_waiting(self) -> int:
        return len(self._waiting) + len(self._learning)

    def _on_end(self, instance: int, message: CancelJob | KvDelivered) -> None:
        job = self._jobs.get((instance, message.reservation))
        if isinstance(message, CancelJob):
            if job is not None:
                self._end(job)
            self.outbox.decode.append((instance, JobStopped(message.reservation)))
        elif job is not None and job.transfer_state is TransferState.SENDING:
            self._phases.stamp(job, "KV acknowledged")
            self._sender.delivered(job.target)
            self._end(job)

    # ---- jobs ----

    def _admit(self) -> None:
        """Admits jobs in the order of the line. A prompt that is too early, or does not fit yet, holds the later ones
        back."""
        budget = self._policies.max_prefill_tokens
        while (job := self._waiting.first()) is not None:
            if is_too_early(job, self._computing, self.planner, self._chunk_size, budget):
                return
            if not self.planner.admit(job.reqs[:1], job.prompt_len, key=job.wanted_cached):
                return

            self._waiting.remove(job)
            job.num_cached = job.prompt.held.num_cached
            self._computing[job] = None
            self.planner.replays.begin(job.prompt)
            if job.moves_kv:
                try:
                    job.transfers = (self._sender.open(job.target, job.prompt.held.pages, job.prompt.prompt_len),)
                except WireError as error:
                    self._fail(job, error)

    def _ship_layers(self, launched: Launched) -> None:
        layers = [launched.layers.popleft() for _ in range(len(launched.layers))]
        for chunk in launched.chunks if layers else ():
            job = self._job_of.get(chunk.req)
            if job is not None and job.moves_kv:
                self._sender.layers_ready(job.target, layers, chunk.end)

    def _on_first_tokens(self, job: Job, tokens: list[int]) -> None:
        for req, token in zip(job.reqs, tokens, strict=True):
            req.append((token,))
        del self._computing[job]
        self.planner.book.keep(job.prompt.held, job.cache_key)
        self._phases.stamp(job, "first token")

        self.outbox.gateway.append(job.first_token)
        if job.has_ended:
            self.outbox.decode.append((job.target.peer.instance, job.finished_early))
            self._end(job)
        else:
            instance, stamps = job.target.peer.instance, tuple(job.stamps)
            self.outbox.decode.append((instance, JobCredit(job.target.reservation)))
            hidden = job.hidden if self._peers.has_draft(instance) else b""
            self._sender.finish(job.target, tuple(tokens), stamps, job.num_cached, hidden, job.logprobs)
            self._late.set(job, self._clock.now() + DELIVERY_DEADLINE_S)

    def _fail_hopeless(self, now: float) -> None:
        for target in self._sender.broken():
            job = self._jobs[target.peer.instance, target.reservation]
            self._fail(job, KvNotDelivered(f"the connection to {target.peer.worker_id} that carries KV was lost"))
        for job in self._late.due(now):
            who = job.target.peer.worker_id
            self._fail(job, KvNotDelivered(f"no KvDelivered from {who} in {DELIVERY_DEADLINE_S:.0f} s"))

    def _fail(self, job: Job, error: BatonError) -> None:
        self.outbox.decode.append((job.target.peer.instance, job.failed(error)))
        self._end(job)

    def _end(self, job: Job) -> None:
        """Ends a job in every case. Its pages are reused once the transport has stopped reading them."""
        self._sender.cancel(job.target)  # does nothing after delivery
        self._late.drop(job)
        self._learning.drop(job)
        self._waiting.remove(job)
        self._computing.pop(job, None)

        target = job.target
        del self._jobs[target.peer.instance, target.reservation]
        for req in job.reqs:
            del self._job_of[req]
        self.planner.release(job.prompt, lambda: self._sender.is_reading(target))
