"""The prefill workers of a decode worker: which have answered its Hello, and their job credit.

    greet -> (HelloAccepted | HelloRefused | silence) -> jobs | refusal | lost
      ^---------------- the session is lost -----------------------/

Job credit bounds the prompt tokens that are queued at one prefill worker.
"""

from dataclasses import dataclass, field

from protocol.errors import WireError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout, mismatch
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import Hello, HelloAccepted, HelloRefused
from transfer.landing.frame_receiver import FrameReceiver
from transfer.offers import Agreed

HELLO_DEADLINE_S = 30.0  # for prefill to answer a greeting


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
    layout: KvLayout | None = None  # of its pages, once it has accepted
    agreed: Agreed | None = None  # how its KV comes, from then on

    def accept(self, job_tokens: int, layout: KvLayout, agreed: Agreed) -> None:
        """Notes that the peer takes jobs for `job_tokens` prompt tokens. Only the first call counts."""
        if not self.accepted:
            self.granted, self.layout, self.agreed = job_tokens, layout, agreed

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

    @property
    def takes_jobs(self) -> bool:
        """Whether a job may be sent now."""
        return self.accepted and self.tokens_queued < self.granted


class PrefillPeers:
    """Peers by instance, and the contents of this worker's Hello."""

    def __init__(
        self, address: WorkerAddress, layout: KvLayout, fingerprint: Fingerprint, receiver: FrameReceiver
    ) -> None:
        self._address = address
        self._layout = layout
        self._fingerprint = fingerprint
        self._receiver = receiver
        self._peers: dict[int, PrefillPeer] = {}

    def get(self, instance: int) -> PrefillPeer | None:
        """The peer, if a Hello was sent and it is not lost."""
        return self._peers.get(instance)

    def greet(self, address: WorkerAddress, now: float) -> Hello | None:
        """The Hello to send to a new peer; None if it was sent before."""
        if address.instance in self._peers:
            return None
        self._peers[address.instance] = PrefillPeer(address, now + HELLO_DEADLINE_S)
        return Hello(
            address=self._address,
            layout=self._layout,
            fingerprint=self._fingerprint,
            offer=self._receiver.offer(address.instance),
            to=address.instance,
        )

    def answered(self, peer: PrefillPeer, answer: HelloAccepted | HelloRefused) -> str:
        """Notes its answer. Why KV cannot move between the two; empty if it can."""
        if isinstance(answer, HelloRefused):
            peer.refusal = answer.reason
        elif answer.address.instance == peer.address.instance and not (peer.accepted or peer.refusal):
            # Otherwise another process has taken its port, and the gateway will report the peer as lost.
            peer.refusal = mismatch(answer.layout, self._layout, peer.address.worker_id, self._address.worker_id) or ""
            if not peer.refusal:
                self._accept(peer, answer)
        return peer.refusal

    def _accept(self, peer: PrefillPeer, answer: HelloAccepted) -> None:
        try:
            agreed = self._receiver.answered(peer.address.instance, answer.offer)
        except WireError as error:
            peer.refusal = error.message
        else:
            peer.accept(answer.job_tokens, answer.layout, agreed)

    def silent(self, now: float) -> list[PrefillPeer]:
        """Peers that have not answered the Hello in time."""
        return [peer for peer in self._peers.values() if peer.answer_by <= now and not (peer.accepted or peer.refusal)]

    @property
    def backends(self) -> dict[str, str]:
        """The transfer backend by worker id, of peers that take jobs."""
        return {peer.address.worker_id: peer.agreed.backend for peer in self._peers.values() if peer.agreed}

    def forget_all(self) -> None:
        """Forgets every peer, so that each gets another Hello when it is next needed."""
        for instance in list(self._peers):
            self.lose(instance)

    def lose(self, instance: int) -> PrefillPeer | None:
        """Forgets a peer that is lost."""
        self._receiver.lose(instance)
        return self._peers.pop(instance, None)
