"""The prefill worker: takes jobs from decode workers, computes prompts in chunks, ships KV layer by layer.

    PrefillJob -> waiting -> chunks (overlap loop) -> FirstToken to the gateway
                                  \\-> each layer as it becomes final -> decode -> KvDelivered -> pages retired

It decides what to compute next and when pages are given back. transfer/states.py has a job's states.
"""

from collections.abc import Sequence

from prefill.decode_peers import DecodePeers
from prefill.jobs import Job, first_tokens
from protocol.errors import BatonError, KvNotDelivered, PrefillQueueFull, WireError
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
from scheduler.planning.launched import Drawn, Launched
from scheduler.planning.overlap_loop import OverlapLoop
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import Destination
from transfer.states import TransferState
from worker.policies import DEFAULTS, Policies
from worker.prompts import Prompts
from worker.requests import Outbox, PhaseTimes, assign_fault
from worker.served import Served

# At decode a level of priority is worth a second. Here jobs have a deadline, and few wait: it is worth less.
JOB_LEVEL_S = 0.1
DELIVERY_DEADLINE_S = 600.0  # from making the last frame to KvDelivered; decode gives up long before


class PrefillWorker:
    """The core of one prefill process: messages in, turns, messages out."""

    def __init__(
        self,
        planner: Planner,
        sender: FrameSender,
        address: WorkerAddress,
        fingerprint: Fingerprint,
        clock: Clock,
        policies: Policies = DEFAULTS,
    ) -> None:
        self.outbox = Outbox()
        self._phases = PhaseTimes(clock, address.worker_id)
        self.planner = planner
        self._sender = sender
        self._clock = clock
        self.loop = OverlapLoop(planner, self, policies.overlap)
        self._peers = DecodePeers(address, planner.layout, fingerprint, sender)
        self.served: Served[Job] = Served(self, policies)
        self.prompts: Prompts[Job] = Prompts(
            planner, clock, policies, self.served, self._seat, self._num_cached, JOB_LEVEL_S
        )
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
        for job in [job for job in self.served.by_key.values() if job.destination.peer.instance == instance]:
            self.served.drop(job)

    def reset(self) -> None:
        """Drops every peer and job: the gateway has restarted. Decode workers that still live greet again.

        The new gateway will not report peers that died with the old one.
        """
        for instance in list(self._peers.by_instance):
            self.on_session_lost(instance)
        self._peers.refuse_none()

    def turn(self) -> bool:
        """One turn of the loop; never blocks. False when there was nothing to do."""
        self._sender.pump()
        self._fail_hopeless(self._clock.now())
        self.admit()
        progressed = self.loop.turn()
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
            kv_pages=self.planner.kv_manager.counts(),
            running=len(self.served.by_key) - self.num_waiting,
            waiting=self.num_waiting,
            queued_prompt_tokens=self.prompts.tokens_left,
            num_launches=self.planner.num_launches,
            counters={**self._sender.counters, "idle_launches": self.planner.num_idle},
            times=self._phases.spreads,
        )

    # ---- loop: what the overlap loop asks of a role ----

    def launch(self) -> bool:
        """Launches chunks of the prompts that were admitted first, up to the chunk size and the budget of a launch."""
        self.admit()  # what the results of this turn have made room for
        chunks = self.prompts.next_chunks()
        if not chunks:
            return False
        for chunk in chunks:
            job = self.served.of[chunk.req]
            if chunk.start == job.num_cached:
                self._phases.stamp(job, "prefill start")
        self.planner.launch(chunks, relay=False, ships=True)
        return True

    def process(self, launched: Launched, drawn: Drawn) -> None:
        """Ships the last layers, sends first tokens to the gateway, and finishes transfers of computed prompts."""
        self._ship_layers(launched)
        self.outbox.tell_prompts(launched, self.served.of)
        for job, tokens in first_tokens(launched, drawn, self.served.of).items():
            self._phases.stamp(job, "prompt computed", launched.computed_at)
            self._on_first_tokens(job, tokens)

    def failed(self, reqs: Sequence[Req], error: BatonError) -> None:
        """Fails the jobs of a launch that raised."""
        self.served.fail_those(reqs, error)

    # ---- requests ----

    @property
    def num_waiting(self) -> int:
        """Jobs without memory."""
        return self.prompts.num_waiting

    def admit(self) -> None:
        """Gives memory to jobs that wait, and begins their transfers."""
        for job in self.prompts.admit():
            if job.moves_kv:
                try:
                    job.transfers = (self._sender.open(job.destination, job.prompt.held.pages, job.prompt.prompt_len),)
                except WireError as error:
                    self.served.fail(job, error)

    def ended(self, request: Job, error: BatonError | None) -> None:
        """Gives its pages back, which are reused once the transport has stopped reading them. Tells decode of an
        error."""
        destination = request.destination
        if error is not None:
            self.outbox.decode.append((destination.peer.instance, request.failed(error)))
        self._sender.cancel(destination)  # does nothing after delivery
        self._late.drop(request)
        self.prompts.drop(request)
        self.planner.release(request.prompt, lambda: self._sender.is_reading(destination))

    def _seat(self, job: Job) -> bool:
        return self.planner.admit(job.reqs[:1], job.prompt_len, key=job.wanted_cached)

    def _num_cached(self, job: Job) -> int:
        return self.planner.num_cached(job.prompt, job.wanted_cached)

    # ---- messages, one by one ----

    def _on_job(self, instance: int, message: PrefillJob) -> None:
        peer = self._peers.by_instance.get(instance)
        if peer is None:
            return  # a stranger: no state is created for it
        assign, length = message.assign, len(message.assign.prompt_ids)
        fault = assign_fault(assign, self.planner, length, 1, message.reservation)
        if fault is None:
            if message.reservation <= peer.newest:
                return  # a repeat: its job may have ended, and other requests may own its pages
            peer.newest = message.reservation
        if error := self.served.refusal(assign, fault, PrefillQueueFull):
            self.outbox.decode.append((instance, JobFailed(message.reservation, error.code, error.message)))
            return

        job = Job(assign, Destination(peer.address, message.reservation, assign.attempt, message.pages, message.start))
        job.to_host = self._sender.reads_host(job.destination)
        self.served.take(job)
        self._phases.stamp(job, "job received")
        self.prompts.add(job)

    def _on_end(self, instance: int, message: CancelJob | KvDelivered) -> None:
        key = (instance, message.reservation)
        if isinstance(message, CancelJob):
            self.served.cancel(key)
            self.outbox.decode.append((instance, JobStopped(message.reservation)))
        elif (job := self.served.by_key.get(key)) is not None and job.transfer_state is TransferState.SENDING:
            self._phases.stamp(job, "KV acknowledged")
            self._sender.delivered(job.destination)
            self.served.drop(job)

    # ---- jobs ----

    def _ship_layers(self, launched: Launched) -> None:
        layers = [launched.layers.popleft() for _ in range(len(launched.layers))]
        for chunk in launched.chunks if layers else ():
            job = self.served.of.get(chunk.req)
            if job is not None and job.moves_kv:
                self._sender.layers_ready(job.destination, layers, chunk.end)

    def _on_first_tokens(self, job: Job, tokens: list[int]) -> None:
        for req, token in zip(job.reqs, tokens, strict=True):
            req.append((token,))
        self.prompts.computed(job)
        self.planner.kv_manager.keep(job.prompt.held, job.cache_key)
        self._phases.stamp(job, "first token")

        self.outbox.gateway.append(job.first_token)
        if job.has_ended:
            self.outbox.decode.append((job.destination.peer.instance, job.finished_early))
            self.served.drop(job)
        else:
            instance, stamps = job.destination.peer.instance, tuple(job.stamps)
            self.outbox.decode.append((instance, JobCredit(job.destination.reservation)))
            hidden = job.hidden if self._peers.has_draft(instance) else b""
            self._sender.finish(job.destination, tuple(tokens), stamps, job.num_cached, hidden, job.logprobs)
            self._late.set(job, self._clock.now() + DELIVERY_DEADLINE_S)

    def _fail_hopeless(self, now: float) -> None:
        for destination in self._sender.broken():
            job = self.served.by_key[destination.peer.instance, destination.reservation]
            self.served.fail(
                job, KvNotDelivered(f"the connection to {destination.peer.worker_id} that carries KV was lost")
            )
        for job in self._late.due(now):
            who = job.destination.peer.worker_id
            self.served.fail(job, KvNotDelivered(f"no KvDelivered from {who} in {DELIVERY_DEADLINE_S:.0f} s"))
