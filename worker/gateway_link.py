"""The link of a worker to its gateway: one socket, the session on it, and patience with a gateway that does not answer.

What is said and heard is the loop's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from protocol.errors import Unavailable, WireError
from protocol.messages_gateway import TO_GATEWAY, TO_WORKER, GatewayLeft, ToGateway, ToWorker
from runtime.bus import REDIAL_S, Dealer
from runtime.clock import Clock
from runtime.log import Refusals, get_log
from runtime.session import Session, open_envelope

SILENT_GATEWAY_S = 5.0  # without an answer, before a warning is logged
JOIN_DEADLINE_S = 60.0

log = get_log("worker")


@dataclass
class GatewayLink:
    """Of one life of a worker."""

    dealer: Dealer
    clock: Clock
    silence_may_mean: str = ""  # why a gateway that runs may not answer, for logs and errors
    refusal_means: Mapping[str, str] = field(default_factory=dict)  # the likely cause of a refusal, by reason
    is_cut_off: bool = False  # it is a member whose connection is lost
    has_left: bool = False  # the gateway has said that it ends
    refusals: Refusals = field(default_factory=lambda: Refusals(log, "message refused"))
    _session: Session = field(default_factory=lambda: Session(1))
    _join_deadline: float = 0.0
    _tell_at: float = 0.0  # when to log that no gateway answers
    _told_cut_off: bool = False  # what the log says of the connection
    _refusal: str = ""  # why the gateway has refused the connection since the last Welcome

    @property
    def socket(self) -> "zmq.Socket[Any]":
        """To wait for messages."""
        return self.dealer.socket

    def begin(self) -> None:
        """Starts the JOIN_DEADLINE_S in which a gateway must answer."""
        now = self.clock.now()
        self._join_deadline, self._tell_at = now + JOIN_DEADLINE_S, now + SILENT_GATEWAY_S

    def begin_session(self) -> None:
        """Begins another session. A Register opens it."""
        self._session = Session(self._session.number + 1)

    def send(self, message: ToGateway) -> None:
        """Says something in the session."""
        self.dealer.send(self._session.seal(TO_GATEWAY.encode(message)))

    def receive(self) -> Sequence[bytes]:
        """What has arrived."""
        return self.dealer.receive()

    def read(self, raw: bytes) -> ToWorker | None:
        """The message for the loop, unless it came before or cannot be read, which is counted. SessionLost if some are
        missing."""
        try:
            envelope = open_envelope(raw)
            message = TO_WORKER.decode(envelope.body) if envelope.body else None
        except WireError as error:
            self.refusals.note("message", source="gateway", why=error.message)
            return None
        if not self._session.accept(envelope):
            return None
        if isinstance(message, GatewayLeft):
            self.has_left = True
            return None
        return message

    def joined(self) -> None:
        """The gateway has answered: the worker is a member."""
        self._refusal, self.has_left = "", False

    def check_joining(self, now: float) -> None:
        """Unavailable, if no gateway has answered in time."""
        if now > self._join_deadline:
            reason = self.refusal_means.get(self._refusal, self.silence_may_mean)
            reason = f" ({reason})" if reason else ""
            raise Unavailable(f"no gateway has answered at {self.dealer.endpoint} in {JOIN_DEADLINE_S:.0f} s{reason}")
        if now > self._tell_at and not self._refusal:
            perhaps = {"perhaps": self.silence_may_mean} if self.silence_may_mean else {}
            log.warning("no gateway answers yet, still trying", endpoint=self.dealer.endpoint, **perhaps)
            self._tell_at = self._join_deadline

    def tend(self, now: float, *, is_member: bool) -> None:
        """Looks at the connection, and logs what has happened to it. Called a few times a second. A lost connection is
        logged with the next call: by then GatewayLeft is read, if that came before."""
        refusal = self.dealer.tend(now)
        if refusal and refusal != self._refusal:
            self._refusal = refusal
            reason = self.refusal_means.get(refusal, refusal)
            log.error("the gateway refuses this worker", endpoint=self.dealer.endpoint, why=reason, again_s=REDIAL_S)

        if self.is_cut_off != self._told_cut_off:
            self._told_cut_off = self.is_cut_off
            self._tell_connection()
        if is_member and self.dealer.is_up == self.is_cut_off:
            self.is_cut_off = not self.is_cut_off

    def _tell_connection(self) -> None:
        if self.is_cut_off and self.has_left:
            log.info("the gateway has left", endpoint=self.dealer.endpoint)
        elif self.is_cut_off:
            log.warning("the connection to the gateway is lost", endpoint=self.dealer.endpoint)
        else:
            log.info("the connection to the gateway is back", endpoint=self.dealer.endpoint)

    def close(self, linger_ms: int = 0) -> None:
        """Closes the socket. Queued messages may still leave for `linger_ms`. Idempotent."""
        self.dealer.close(linger_ms)
