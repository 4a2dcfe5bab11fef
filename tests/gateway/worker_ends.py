"""The workers' ends of their sessions with a gateway that a test drives without sockets."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from protocol.fingerprint import pack_weights
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import TO_GATEWAY, TO_WORKER, Register, Role, ToGateway, ToWorker, WorkerAddress
from protocol.worker_facts import KvPages, WorkerStats
from runtime.session import Session, open_envelope


class WorkerEnds:
    """By routing id. Each worker keeps to one session."""

    def __init__(self) -> None:
        self._sessions: defaultdict[bytes, Session] = defaultdict(lambda: Session(1))

    def say(self, identity: bytes, message: ToGateway | bytes) -> bytes:
        """What the gateway gets when this worker says `message`."""
        body = message if isinstance(message, bytes) else TO_GATEWAY.encode(message)
        return self._sessions[identity].seal(body)

    def hear(self, identity: bytes, raw: bytes) -> ToWorker | None:
        """What the gateway has said to this worker; None if only its numbers."""
        envelope = open_envelope(raw)
        is_news = self._sessions[identity].accept(envelope)
        return TO_WORKER.decode(envelope.body) if is_news else None


LAYOUT = KvLayout.uniform(2, 1, 4, 16, "float32")
MODEL = pack_weights("model-a", {"w": bytes(7) + b"\x01"})
STATS = WorkerStats(KvPages(10, 10), 0, 0)


def register(worker_id: str, instance: int, role: Role = Role.DECODE, **fields: Any) -> Register:
    base = Register(WorkerAddress(worker_id, instance), role, 1, "host", LAYOUT, MODEL, 300, 512, 8, 160, STATS, "zmq")
    return replace(base, **fields)
