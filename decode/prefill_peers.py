"""What a decode worker knows of its prefill workers: who was greeted, who answered, and how much job credit is left.

What it does not know: sockets, requests.
"""

from dataclasses import dataclass, field

from protocol.kv_layout import KvLayout
from protocol.messages_gateway import WorkerAddress


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

    def settle(self, reservation: int) -> None:
        """The job is queued no more. Idempotent."""
        self.queued.pop(reservation, None)

    @property
    def tokens_queued(self) -> int:
        """Prompt tokens of the jobs sent to it that it has not yet computed."""
        return sum(self.queued.values())

    @property
    def takes_jobs(self) -> bool:
        """Whether a job may be sent now."""
        return self.accepted and self.tokens_queued < self.granted


class PrefillPeers:
    """Peers by instance."""

    def __init__(self) -> None:
        self._peers: dict[int, PrefillPeer] = {}

    def get(self, instance: int) -> PrefillPeer | None:
        """The peer, if it was greeted and is not lost."""
        return self._peers.get(instance)

    def meet(self, address: WorkerAddress, answer_by: float) -> bool:
        """Notes a peer; True when it is new and is to be greeted."""
        if address.instance in self._peers:
            return False
        self._peers[address.instance] = PrefillPeer(address, answer_by)
        return True

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
        self._peers.clear()

    def lose(self, instance: int) -> PrefillPeer | None:
        """Forgets a peer that is lost."""
        return self._peers.pop(instance, None)
