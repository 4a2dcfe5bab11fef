"""The prefill workers of a decode worker: which have answered its Hello, and their job credit.

    greet -> (HelloAccepted | HelloRefused | silence) -> jobs | refusal | lost
      ^---------------- the session is lost -----------------------/

Job credit bounds the prompt tokens that are queued at one prefill worker. A reservation that ends early may still be
written in place until its prefill worker has answered CancelJob.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.errors import Unavailable, WireError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout, mismatch
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import CancelJob, DataCredit, Hello, HelloAccepted, HelloRefused
from runtime.clock import Clock, Deadlines
from transfer.landing.frame_receiver import FrameReceiver
from transfer.landing.transfer import CreditReturned
from transfer.offers import Agreed
from worker.requests import Outbox

HELLO_DEADLINE_S = 30.0  # for prefill to answer a greeting
ASK_AGAIN_S = 5.0  # between two CancelJobs to a prefill worker that has not answered JobStopped


@dataclass
class PrefillPeer:
    """A prefill worker. `queued` holds prompt tokens by reservation: those of sent jobs that it has not computed or
    dropped yet. A job may be sent whenever less is queued than granted, so a long prompt may exceed the grant."""

    address: WorkerAddress
    answer_by: float  # when to give up an unanswered Hello, in seconds of the worker's clock
    refusal: str = ""
    granted: int = 0
    queued: dict[int, int] = field(default_factory=dict)
    tokens_queued: int = 0  # the sum of `queued`
    layout: KvLayout | None = None  # of the KV that it sends, once it has accepted
    agreed: Agreed | None = None  # how its KV comes, from then on

    @property
    def in_place(self) -> bool:
        """Whether it writes our pages itself."""
        return self.agreed is not None and self.agreed.in_place

    @property
    def accepted(self) -> bool:
        """Whether it has accepted the greeting."""
        return self.agreed is not None

    def sent(self, reservation: int, num_tokens: int) -> None:
        """Counts a job that was sent to it."""
        self.queued[reservation] = num_tokens
        self.tokens_queued += num_tokens

    def settle(self, reservation: int) -> None:
        """Stops counting the job, if it is still counted."""
        self.tokens_queued -= self.queued.pop(reservation, 0)


class GivenUp(NamedTuple):
    """A peer that is forgotten, and why its requests fail."""

    instance: int
    reason: Unavailable


@dataclass(eq=False)
class PrefillPeers:
    """Peers by instance, the contents of this worker's Hello, and what peers have still to stop."""

    address: WorkerAddress
    layout: KvLayout
    fingerprint: Fingerprint
    receiver: FrameReceiver
    outbox: Outbox
    clock: Clock
    may_lack_draft: bool = False  # see Hello

    def __post_init__(self) -> None:
        self.by_instance: dict[int, PrefillPeer] = {}
        self._stopping: Deadlines[tuple[WorkerAddress, int]] = Deadlines()  # who may still write a closed reservation

    def takes_jobs(self, instance: int) -> bool:
        """Whether a job may be sent to that worker now."""
        peer = self.by_instance.get(instance)
        return peer is not None and peer.accepted and peer.tokens_queued < peer.granted

    def greet(self, address: WorkerAddress) -> None:
        """Sends Hello to a new peer."""
        if address.instance in self.by_instance:
            return
        self.by_instance[address.instance] = PrefillPeer(address, self.clock.now() + HELLO_DEADLINE_S)
        hello = Hello(
            address=self.address,
            layout=self.layout,
            fingerprint=self.fingerprint,
            offer=self.receiver.offer(address.instance),
            to=address.instance,
            may_lack_draft=self.may_lack_draft,
        )
        self.outbox.prefill.append((address, hello))

    def answered(self, peer: PrefillPeer, answer: HelloAccepted | HelloRefused) -> str:
        """Notes its answer. Why KV cannot move between the two; empty if it can."""
        if isinstance(answer, HelloRefused):
            peer.refusal = answer.reason
        elif answer.address.instance == peer.address.instance and not (peer.accepted or peer.refusal):
            # Otherwise another process has taken its port, and the gateway will report the peer as lost.
            lacks_draft = self.may_lack_draft and len(answer.layout.groups) == 1
            ours = self.layout.without_draft if lacks_draft else self.layout
            peer.refusal = mismatch(answer.layout, ours, peer.address.worker_id, self.address.worker_id) or ""
            if not peer.refusal:
                self._accept(peer, answer)
        return peer.refusal

    def _accept(self, peer: PrefillPeer, answer: HelloAccepted) -> None:
        try:
            peer.agreed = self.receiver.answered(peer.address.instance, answer.offer)
        except WireError as error:
            peer.refusal = error.message
        else:
            peer.granted, peer.layout = answer.job_tokens, answer.layout

    def give_up(self, now: float) -> list[GivenUp]:
        """Forgets peers that have not answered the Hello in time: the next request greets them again. Returns who they
        are, and why their requests fail."""
        given_up = list[GivenUp]()
        for peer in list(self.by_instance.values()):
            if not (peer.accepted or peer.refusal) and peer.answer_by <= now:
                self.lose(peer.address.instance)
                reason = f"prefill worker {peer.address.worker_id} did not answer in {HELLO_DEADLINE_S:.0f} s"
                given_up.append(GivenUp(peer.address.instance, Unavailable(reason)))
        return given_up

    def return_credit(self, returned: CreditReturned) -> None:
        """Tells a peer that bytes it has sent were taken."""
        if (peer := self.by_instance.get(returned.sender_instance)) is not None:
            self.outbox.prefill.append((peer.address, DataCredit(returned.reservation, returned.num_bytes)))

    def closed(self, address: WorkerAddress, reservation: int, cancel_job: bool = False) -> None:
        """A reservation takes no more frames. `cancel_job`: the peer, unless it is lost, gets CancelJob. While it may
        still write the pages, it gets another."""
        if (peer := self.by_instance.get(address.instance)) is not None:
            peer.settle(reservation)
            if cancel_job:
                self.outbox.prefill.append((address, CancelJob(reservation)))
        if self.receiver.may_be_written(reservation):
            self._stopping.set((address, reservation), self.clock.now() + ASK_AGAIN_S)

    def ask_again(self, now: float) -> None:
        """Tells peers again to stop that have not answered. CancelJob or its answer may be lost."""
        for address, reservation in self._stopping.due(now):
            if self.receiver.may_be_written(reservation):
                self._stopping.set((address, reservation), now + ASK_AGAIN_S)
                if address.instance not in self.by_instance:
                    self.greet(address)  # forgotten with an old gateway; it releases its old seat for the new one
                else:
                    self.outbox.prefill.append((address, CancelJob(reservation)))

    @property
    def backends(self) -> dict[str, str]:
        """The transfer backend by worker id, of peers that take jobs."""
        return {peer.address.worker_id: peer.agreed.backend for peer in self.by_instance.values() if peer.agreed}

    def forget_all(self) -> None:
        """Forgets every peer, so that each gets another Hello when it is next needed."""
        for instance in list(self.by_instance):
            self.lose(instance)

    def lose(self, instance: int) -> PrefillPeer | None:
        """Forgets a peer that is lost."""
        self.receiver.lose(instance)
        return self.by_instance.pop(instance, None)

    def never_ask(self, instance: int) -> None:
        """A lost peer is told nothing more: it writes no more once its process has ended."""
        for address, reservation in self._stopping:
            if address.instance == instance:
                self._stopping.drop((address, reservation))
