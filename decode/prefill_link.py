"""The sockets of a decode worker to prefill workers. It dials each one that it has messages for.

An Assign of the gateway carries the prefill worker's address.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import zmq

from protocol.errors import WireError
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import TO_DECODE, TO_PREFILL, ToDecode
from runtime.bus import Dealer
from runtime.curve import OPEN, Security
from runtime.log import get_log
from runtime.session import Session, SessionLost, open_envelope
from transfer.landing.frame_receiver import FrameReceiver
from worker.parts import PeerLink
from worker.requests import Outbox

LAST_WORDS_MS = 1000  # for cancels to leave before a connection is closed

log = get_log("decode")


@dataclass(eq=False)
class PrefillLink(PeerLink):
    """Sends `outbox.prefill` and calls `deliver(instance, message)` for each message that arrives.

    It calls `lost(instance)` when a session is lost and another has begun.
    """

    context: "zmq.Context[zmq.Socket[bytes]]"
    identity: bytes
    receiver: FrameReceiver
    outbox: Outbox
    deliver: Callable[[int, ToDecode], None]
    lost: Callable[[int], None]
    security: Security = OPEN

    def __post_init__(self) -> None:
        super().__init__(log)
        self._dealers: dict[int, Dealer] = {}
        self._sessions: dict[int, Session] = {}  # one for each dealer
        self._session_numbers = count(1)  # of sessions; they only grow

    def receive(self) -> None:
        """Hands arrived messages to the core. Malformed ones are counted and dropped."""
        for instance, dealer in list(self._dealers.items()):
            lost: SessionLost | None = None
            try:
                for raw in dealer.receive():
                    self._hear(instance, raw)
            except SessionLost as error:
                lost = error

            if dealer.has_returned():
                lost = lost or SessionLost("has dropped its connection, which was made again")
            if lost is not None:
                self._begin_anew(instance, lost)

    def tick(self) -> None:
        """Tells each prefill worker how many messages have arrived, if its session has some that are not confirmed."""
        for instance, session in list(self._sessions.items()):
            try:
                if not session.is_settled:
                    self._dealers[instance].send(session.tick())
            except SessionLost as lost:
                self._begin_anew(instance, lost)

    def _hear(self, instance: int, raw: bytes) -> None:
        try:
            envelope = open_envelope(raw)
            message = TO_DECODE.decode(envelope.body) if envelope.body else None
        except WireError as error:
            self.refusals.note("message", instance=instance, why=error.message)
            return
        if self._sessions[instance].accept(envelope) and message is not None:
            self.deliver(instance, message)

    def _begin_anew(self, instance: int, lost: SessionLost) -> None:
        log.warning("session lost", instance=instance, why=f"prefill {lost}")
        self._sessions[instance] = Session(next(self._session_numbers))
        self.outbox.prefill[:] = [message for message in self.outbox.prefill if message[0].instance != instance]
        self.lost(instance)

    def flush(self) -> None:
        """Sends the core's messages to prefill workers, and dials new ones."""
        for address, message in self.outbox.prefill:
            dealer = self._dealers.get(address.instance) or self._dial(address)
            if dealer is None or not dealer.send(self._sessions[address.instance].seal(TO_PREFILL.encode(message))):
                log.warning("message not sent", worker=address.worker_id, kind=type(message).__name__)
        self.outbox.prefill.clear()

    def forget(self, instance: int) -> None:
        """Closes the connection to a lost prefill worker."""
        if (dealer := self._dealers.pop(instance, None)) is not None:
            del self._sessions[instance]
            dealer.close()

    def forget_all(self) -> None:
        """Closes every connection. A peer that lives is dialled again; a dead one is never reported on this link."""
        for dealer in self._dealers.values():
            dealer.close(LAST_WORDS_MS)
        self._dealers.clear()
        self._sessions.clear()

    def pollables(self) -> Sequence[Any]:
        """The sockets of every connection, and those of the transfer."""
        return [*(dealer.socket for dealer in self._dealers.values()), *self.receiver.pollables()]

    def close(self) -> None:
        """Closes the sockets."""
        for instance in list(self._dealers):
            self.forget(instance)
        self.receiver.close()

    def _dial(self, address: WorkerAddress) -> Dealer | None:
        try:
            dealer = Dealer(self.context, address.peer, self.identity, watched=True, security=self.security)
        except (zmq.ZMQError, WireError) as error:
            log.warning("cannot dial", worker=address.worker_id, address=address.peer, why=str(error))
            return None
        self._dealers[address.instance], self._sessions[address.instance] = dealer, Session(next(self._session_numbers))
        return dealer
