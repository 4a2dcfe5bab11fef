"""The sockets of a prefill worker towards decode workers: one ROUTER that they dial.

A peer is known by the routing id that it dialled with, `worker_id#instance`, from its Hello on; whoever has not said
hello may say nothing else, and nothing long. What it does not know: jobs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protocol.codec import MAX_STRANGER_BYTES
from protocol.errors import WireError
from protocol.messages_handoff import TO_DECODE, TO_PREFILL, Hello, HelloRefused, ToPrefill
from runtime.bus import Router
from runtime.log import get_log
from runtime.refusals import Refusals
from transfer.sending.frame_sender import FrameSender
from worker.outbox import Outbox

log = get_log("prefill")


class DecodeLink:
    """`deliver(instance, message)` takes what arrives; `outbox.decode` is what leaves."""

    def __init__(
        self, router: Router, sender: FrameSender, outbox: Outbox, deliver: Callable[[int, ToPrefill], None]
    ) -> None:
        self._router = router
        self._sender = sender
        self._outbox = outbox
        self._deliver = deliver
        self._identities: dict[int, bytes] = {}  # of those that have said hello
        self._refusals = Refusals(log, "message refused")

    @property
    def counters(self) -> Mapping[str, float]:
        """What was refused so far."""
        return {"refused_messages": self._refusals.total}

    def receive(self) -> None:
        """Hands what has arrived to the core; what is malformed, or from a stranger, is counted and dropped."""
        for identity, raw in self._router.receive():
            try:
                instance, message = self._read(identity, raw)
            except WireError as error:
                self._refusals.note("message", worker=identity.decode(errors="replace"), why=error.message)
            else:
                self._identities[instance] = identity
                self._deliver(instance, message)

    def _read(self, identity: bytes, raw: bytes) -> tuple[int, ToPrefill]:
        instance = _instance(identity)
        if instance is None:
            raise WireError("its routing id is not worker_id#instance")
        holder = self._identities.get(instance)
        message = TO_PREFILL.decode(raw, None if holder == identity else MAX_STRANGER_BYTES)
        if isinstance(message, Hello):
            if holder not in (None, identity):
                raise WireError("another connection speaks for this instance")
            if identity != f"{message.address.worker_id}#{instance}".encode():
                raise WireError(f"it names worker {message.address.worker_id!r}, its connection another")
        elif holder != identity:
            raise WireError(f"{type(message).__name__} from a connection that has not said hello")
        return instance, message

    def flush(self) -> None:
        """Sends what the core has for decode workers."""
        for instance, message in self._outbox.decode:
            identity = self._identities.get(instance)
            if identity is None or not self._router.send(identity, TO_DECODE.encode(message)):
                log.warning("message not sent", instance=instance, kind=type(message).__name__)
            if isinstance(message, HelloRefused):
                self.forget(instance)
        self._outbox.decode.clear()

    def forget(self, instance: int) -> None:
        """A decode worker is lost."""
        self._identities.pop(instance, None)

    def forget_all(self) -> None:
        """Names are kept: the cancels of decode workers that live are still to come."""

    def pollables(self) -> Sequence[Any]:
        """The ROUTER."""
        return [self._router.socket]

    def close(self) -> None:
        """Closes the sockets."""
        self._sender.close()
        self._router.close()


def _instance(identity: bytes) -> int | None:
    digits = identity.rpartition(b"#")[2]
    return int(digits) if digits.isdigit() and len(digits) < 20 else None
