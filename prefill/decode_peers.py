"""The decode workers of a prefill worker: which have said Hello, and which were lost."""

from collections import deque
from dataclasses import dataclass

from protocol.errors import LayoutMismatch, WireError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import Hello, HelloAccepted, HelloRefused
from protocol.pairs import Serves, moves, pair_fault
from transfer.sending.frame_sender import FrameSender

JOB_TOKENS = 16_384  # queued prompt tokens granted to each decode worker
LOST_REMEMBERED = 1000  # the gateway has told older lost workers to end long ago


@dataclass
class DecodePeer:
    """A decode worker that has said hello."""

    address: WorkerAddress
    has_draft: bool = True  # KV of our draft is of use to it
    newest: int = -1  # the last job's reservation; reservations ascend


@dataclass(eq=False)
class DecodePeers:
    """Peers by instance, and the answer to their Hello."""

    address: WorkerAddress
    layout: KvLayout
    fingerprint: Fingerprint
    sender: FrameSender

    def __post_init__(self) -> None:
        self.by_instance: dict[int, DecodePeer] = {}
        self._lost: deque[int] = deque(maxlen=LOST_REMEMBERED)  # instances

    def answer(self, instance: int, hello: Hello) -> HelloAccepted | HelloRefused:
        """Takes a new peer, or one that was forgotten, if KV can move between the two."""
        try:
            layout = self._check(instance, hello)
            offer = self.sender.attach(instance, hello.layout, hello.offer, layout)
        except WireError as error:
            return HelloRefused(error.message)

        self.by_instance[instance] = DecodePeer(hello.address, has_draft=layout == self.layout)
        return HelloAccepted(address=self.address, job_tokens=JOB_TOKENS, layout=layout, offer=offer)

    def _check(self, instance: int, hello: Hello) -> KvLayout:
        """The layout of the KV that moves. LayoutMismatch, naming both values, if none can move to this decode worker.

        WireError if it was lost: the gateway will not report it again.
        """
        if instance in self._lost:
            raise WireError(f"worker {hello.address.worker_id!r} was declared lost; this instance may not return")
        if hello.address.instance != instance:  # jobs are kept by the connection's instance, transfers by the address's
            reason = f"address.instance: got {hello.address.instance}, expected {instance}, as the connection says"
            raise LayoutMismatch(reason)
        ours = Serves(self.address.worker_id, self.layout, self.fingerprint)
        theirs = Serves(hello.address.worker_id, hello.layout, hello.fingerprint)
        if (layout := moves(ours, theirs, may_lack_draft=hello.may_lack_draft)) is None:
            raise LayoutMismatch(pair_fault(ours, theirs) or "")
        return layout

    def has_draft(self, instance: int) -> bool:
        """Whether a peer has the same draft."""
        return instance in self.by_instance and self.by_instance[instance].has_draft

    def forget(self, instance: int) -> None:
        """Drops a peer and every transfer to it. It may greet again."""
        self.sender.drop_peer(instance)
        self.by_instance.pop(instance, None)

    def refuse(self, instance: int) -> None:
        """The gateway has declared an instance lost: it may not greet again."""
        self._lost.append(instance)

    def refuse_none(self) -> None:
        """There is a new gateway, which may admit those that the old one had lost."""
        self._lost.clear()
