"""The sockets of a prefill worker towards decode workers: one ROUTER that they dial.

A peer is known by the routing id that it dialled with, `worker_id#instance`. What it does not know: jobs.
"""

from collections.abc import Callable, Sequence
from typing import Any

from protocol.errors import WireError
from protocol.messages_handoff import TO_DECODE, TO_PREFILL, ToPrefill
from runtime.bus import Router
from runtime.log import get_log
from scheduler.outbox import Outbox
from transfer.interface import KvSender

log = get_log("prefill")


class DecodeLink:
    """`deliver(instance, message)` takes what arrives; `outbox.decode` is what leaves."""

    def __init__(
        self, router: Router, sender: KvSender, outbox: Outbox, deliver: Callable[[int, ToPrefill], None]
    ) -> None:
        self._router = router
        self._sender = sender
        self._outbox = outbox
        self._deliver = deliver
        self._identities: dict[int, bytes] = {}

    def receive(self) -> None:
        """Hands what has arrived to the core; what is malformed is logged and dropped."""
        for identity, raw in self._router.receive():
            instance = _instance(identity)
            try:
                message = TO_PREFILL.decode(raw)
            except WireError as error:
                log.warning("bad message", source=identity.decode(errors="replace"), error=error.message)
                continue
            if instance is None:
                log.warning("bad message", source=identity.hex(), error="routing id is not worker_id#instance")
                continue
            self._identities[instance] = identity
            self._deliver(instance, message)

    def flush(self) -> None:
        """Sends what the core has for decode workers."""
        for instance, message in self._outbox.decode:
            identity = self._identities.get(instance)
            if identity is None or not self._router.send(identity, TO_DECODE.encode(message)):
                log.warning("message not sent", to=instance, kind=type(message).__name__)
        self._outbox.decode.clear()

    def forget(self, instance: int) -> None:
        """A decode worker is lost."""
        self._identities.pop(instance, None)

    def pollables(self) -> Sequence[Any]:
        """The ROUTER, and what the transfer waits on."""
        return [self._router.socket, *self._sender.pollables()]

    def close(self) -> None:
        """Closes the sockets."""
        self._sender.close()
        self._router.close()


def _instance(identity: bytes) -> int | None:
    digits = identity.rpartition(b"#")[2]
    return int(digits) if digits.isdigit() and len(digits) < 20 else None
