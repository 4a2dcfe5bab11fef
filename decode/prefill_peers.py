"""What a decode worker knows of its prefill workers: who was greeted, who answered, and how much job credit is left.

    greet -> (HelloAccepted | HelloRefused | silence) -> jobs | refusal | lost
      ^---------------- the session is lost -----------------------/

What it does not know: sockets, requests.
"""

from dataclasses import dataclass, field

from protocol.errors import WireError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout, mismatch
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import Hello, HelloAccepted, HelloRefused
from transfer.landing.frame_receiver import FrameReceiver

HELLO_DEADLINE_S = 30.0  # for prefill to answer a greeting


@dataclass
class PrefillPeer:
    """`queued` are the prompts of the jobs sent to it, in tokens by reservation, until it says that they were computed
    or dropped, or until they are over otherwise: what it says may be lost. A job may go whenever less is queued than
    was granted, so that long prompts go too."""

    address: WorkerAddress
    answer_by: float  # seconds of the worker's clock; a greeting that nobody answers is given up then
    accepted: bool = False
    refusal: str = ""
    granted: int = 0
    queued: dict[int, int] = field(default_factory=dict)
    tokens_queued: int = 0  # the sum of `queued`: prompt tokens of the jobs sent to it that it has not yet computed
    layout: KvLayout | None = None  # of its pages, once it has accepted
    seat: int = 0  # that it holds, so that it may be told pages, to write them itself; 0: none
    backend: str = ""  # how KV comes from there

    def accept(self, job_tokens: int, layout: KvLayout, seat: int = 0, backend: str = "") -> None:
        """The peer takes jobs for `job_tokens`; it grants once."""
        if not self.accepted:
            self.accepted, self.granted = True, job_tokens
            self.layout, self.seat, self.backend = layout, seat, backend

    def sent(self, reservation: int, num_tokens: int) -> None:
        """A job has gone to it."""
        self.queued[reservation] = num_tokens
        self.tokens_queued += num_tokens

    def settle(self, reservation: int) -> None:
        """The job is queued no more. Idempotent."""
        self.tokens_queued -= self.queued.pop(reservation, 0)

    @property
    def takes_jobs(self) -> bool:
        """Whether a job may be sent now."""
        return self.accepted and self.tokens_queued < self.granted


class PrefillPeers:
    """Peers by instance, and what this worker says of itself when it meets them."""

    def __init__(
        self, address: WorkerAddress, layout: KvLayout, fingerprint: Fingerprint, receiver: FrameReceiver
    ) -> None:
        self._address = address
        self._layout = layout
        self._fingerprint = fingerprint
        self._receiver = receiver
        self._peers: dict[int, PrefillPeer] = {}

    def get(self, instance: int) -> PrefillPeer | None:
        """The peer, if it was greeted and is not lost."""
        return self._peers.get(instance)

    def greet(self, address: WorkerAddress, now: float) -> Hello | None:
        """What to say to a peer that is new; None if it was greeted."""
        if address.instance in self._peers:
            return None
        self._peers[address.instance] = PrefillPeer(address, now + HELLO_DEADLINE_S)
        pool = self._receiver.offer(address.instance)
        return Hello(self._address, self._layout, self._fingerprint, pool, address.instance)

    def answered(self, peer: PrefillPeer, answer: HelloAccepted | HelloRefused) -> str:
        """Notes its answer. Why KV cannot move between the two; empty if it can."""
        if isinstance(answer, HelloRefused):
            peer.refusal = answer.reason
        elif answer.address.instance == peer.address.instance and not (peer.accepted or peer.refusal):
            # else a process that has got its port: the gateway will say that the one we greeted is lost
            peer.refusal = mismatch(answer.layout, self._layout, peer.address.worker_id, self._address.worker_id) or ""
            if not peer.refusal:
                self._accept(peer, answer)
        return peer.refusal

    def _accept(self, peer: PrefillPeer, answer: HelloAccepted) -> None:
        try:
            self._receiver.meet(peer.address.instance, answer.export)
            seat = self._receiver.admit_writer(peer.address.instance, answer.in_place, answer.device_writer)
            backend = self._receiver.backend(peer.address.instance, bool(seat))
        except WireError as error:
            peer.refusal = error.message
        else:
            peer.accept(answer.job_tokens, answer.layout, seat, backend)

    def silent(self, now: float) -> list[PrefillPeer]:
        """Those that were greeted and have not answered in time."""
        return [peer for peer in self._peers.values() if peer.answer_by <= now and not (peer.accepted or peer.refusal)]

    @property
    def backends(self) -> dict[str, str]:
        """By worker id of those that take jobs: how KV comes from there."""
        accepted = [peer for peer in self._peers.values() if peer.accepted]
        return {peer.address.worker_id: peer.backend for peer in accepted}

    def forget_all(self) -> None:
        """Whoever is named from now on is greeted again."""
        for instance in list(self._peers):
            self.lose(instance)

    def lose(self, instance: int) -> PrefillPeer | None:
        """Forgets a peer that is lost."""
        self._receiver.lose(instance)
        return self._peers.pop(instance, None)
