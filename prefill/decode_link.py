"""The sockets of a prefill worker to decode workers: one ROUTER that they dial.

The routing id of a peer is `worker_id#instance`. A peer's first message must be a Hello, which must be short.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import WireError
from protocol.message import MAX_STRANGER_BYTES
from protocol.messages_handoff import TO_DECODE, TO_PREFILL, Hello, HelloRefused, ToDecode, ToPrefill
from runtime.bus import Router
from runtime.log import get_log
from runtime.session import Envelope, Session, SessionLost, not_known, open_envelope
from transfer.sending.frame_sender import FrameSender
from worker.parts import PeerLink
from worker.requests import Outbox

log = get_log("prefill")


@dataclass(eq=False)
class DecodeLink(PeerLink):
    """The link of the prefill worker `instance`.

    It sends `outbox.decode` and calls `deliver(instance, message)` for each message that arrives. It calls
    `lost(instance)` when a session is lost; the decode worker then begins another.
    """

    router: Router
    sender: FrameSender
    instance: int
    outbox: Outbox
    deliver: Callable[[int, ToPrefill], None]
    lost: Callable[[int], None]

    def __post_init__(self) -> None:
        super().__init__(log)
        self._identities: dict[int, bytes] = {}  # of decode workers that have said hello
        self._sessions: dict[int, Session] = {}  # with these workers, unless lost

    def receive(self) -> None:
        """Hands arrived messages to the core. Malformed ones and those of strangers are counted and dropped."""
        for identity, raw in self.router.receive():
            try:
                self._hear(identity, raw)
            except WireError as error:
                self.refusals.note("message", worker=identity.decode(errors="replace"), why=error.message)

    def _hear(self, identity: bytes, raw: bytes) -> None:
        instance = _instance(identity)
        if instance is None:
            raise WireError("its routing id is not worker_id#instance")

        is_known = self._identities.get(instance) == identity
        envelope = open_envelope(raw)
        most = None if is_known else MAX_STRANGER_BYTES
        message = TO_PREFILL.decode(envelope.body, most) if envelope.body else None
        if isinstance(message, Hello):
            self._check_hello(instance, identity, message)
            if message.to not in (None, self.instance):
                return  # meant for another process, whose port this one has got

        if is_known and instance in self._sessions:
            try:
                if self._sessions[instance].accept(envelope) and message is not None:
                    self.deliver(instance, message)
                return
            except SessionLost as lost:
                self._lose_session(instance, lost)

        if isinstance(message, Hello) and envelope.opens:
            self._open(instance, identity, envelope)
            self.deliver(instance, message)
        elif is_known or message is None or isinstance(message, Hello):
            self.router.send(identity, not_known(envelope.session_number))
        else:
            raise WireError(f"{type(message).__name__} from a connection that has not said hello")

    def _check_hello(self, instance: int, identity: bytes, hello: Hello) -> None:
        if self._identities.get(instance) not in (None, identity):
            raise WireError("another connection speaks for this instance")
        if identity != f"{hello.address.worker_id}#{instance}".encode():
            raise WireError(f"it names worker {hello.address.worker_id!r}, its connection belongs to another")

    def _open(self, instance: int, identity: bytes, envelope: Envelope) -> None:
        self._identities[instance] = identity
        self._sessions[instance] = session = Session(envelope.session_number)
        session.accept(envelope)

    def _lose_session(self, instance: int, lost: SessionLost) -> None:
        log.warning("session lost", instance=instance, why=f"decode {lost}")
        del self._sessions[instance]
        self.lost(instance)
        self.outbox.decode[:] = [message for message in self.outbox.decode if message[0] != instance]

    def tick(self) -> None:
        """Tells each prefill worker how many messages have arrived, if its session has some that are not confirmed."""
        for instance, session in list(self._sessions.items()):
            try:
                if not session.is_settled:
                    self.router.send(self._identities[instance], session.tick())
            except SessionLost as lost:
                self.router.send(self._identities[instance], not_known(session.number))
                self._lose_session(instance, lost)

    def flush(self) -> None:
        """Sends the core's messages to decode workers."""
        for instance, message in self.outbox.decode:
            if not self._send(instance, message):
                log.warning("message not sent", instance=instance, kind=type(message).__name__)
            if isinstance(message, HelloRefused):
                self.forget(instance)
        self.outbox.decode.clear()

    def _send(self, instance: int, message: ToDecode) -> bool:
        session = self._sessions.get(instance)
        if session is None:
            return False
        seal = session.seal_outside if isinstance(message, HelloRefused) else session.seal
        return self.router.send(self._identities[instance], seal(TO_DECODE.encode(message)))

    def forget(self, instance: int) -> None:
        """Forgets a decode worker that is lost."""
        self._identities.pop(instance, None)
        self._sessions.pop(instance, None)

    def forget_all(self) -> None:
        """Keeps the names, because living decode workers will still send cancels."""

    def pollables(self) -> Sequence[Any]:
        """The ROUTER."""
        return [self.router.socket]

    def close(self) -> None:
        """Closes the sockets."""
        self.sender.close()
        self.router.close()


def _instance(identity: bytes) -> int | None:
    digits = identity.rpartition(b"#")[2]
    return int(digits) if digits.isdigit() and len(digits) < 20 else None
