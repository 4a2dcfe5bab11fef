"""One end of a link between two processes: it notices when a message was lost. Pure.

Each message travels in an envelope: (session, number, how many messages of the other end have arrived, body). The end
that dials begins a session and numbers its messages from 1. The other end answers in it, with its own numbers.
A message that cannot be read counts as lost. An envelope without a body repeats the last number, so that the loss of
the last message is noticed too.

    | what arrives                                       | then                                           |
    |----------------------------------------------------|------------------------------------------------|
    | the next number                                    | the body is handed on                          |
    | no body, the last number                           | nothing is missing                             |
    | a number that arrived before, or an older session  | a repeat: it is dropped                        |
    | a later number                                     | SessionLost: a message is missing              |
    | a later session                                    | SessionLost: the other end has begun anew      |
    | more confirmed than was sent                       | SessionLost: it answers another process        |
    | MOST_TICKS ticks with messages, none of which      | SessionLost: sent messages do not arrive       |
    | confirms the ones sent before                      |                                                |
    | number 0                                           | handed on in its session: it is not counted    |
    | number 0 without a body                            | SessionLost: the other end knows no such session|

Only ticks in which something arrived count, so a process that was paused does not blame the other end. The owner also
treats a broken connection as SessionLost, which is the fastest sign. A lost session is thrown away.
"""

import struct
from typing import NamedTuple

from protocol.errors import WireError

MOST_TICKS = 8  # about 2 s, in which a peer that sends must also have received
_VERSION = 1
_HEAD = struct.Struct(">BIQQ")  # version, session, number, confirmed
ENVELOPE_BYTES = _HEAD.size


class SessionLost(Exception):
    """Messages of a session are lost. The text continues a sentence whose subject is the other end."""


class Envelope(NamedTuple):
    """One message on a link. `number` 0: outside the session. `confirmed` counts messages that its sender received."""

    session_number: int
    number: int
    confirmed: int
    body: bytes

    @property
    def opens(self) -> bool:
        """Whether a session may begin with it: only the process that gets its first message knows the session."""
        return self.number == 1 and not self.confirmed and bool(self.body)

    def sealed(self) -> bytes:
        """Bytes for the wire."""
        return _HEAD.pack(_VERSION, self.session_number, self.number, self.confirmed) + self.body


def open_envelope(raw: bytes) -> Envelope:
    """The envelope in `raw`. WireError names its fault."""
    if len(raw) < ENVELOPE_BYTES:
        raise WireError(f"envelope: got {len(raw)} bytes, expected at least {ENVELOPE_BYTES}")
    version, session_number, number, confirmed = _HEAD.unpack_from(raw)
    if version != _VERSION:
        raise WireError(f"envelope: got version {version}, expected {_VERSION}")
    return Envelope(session_number, number, confirmed, raw[ENVELOPE_BYTES:])


def not_known(session_number: int) -> bytes:
    """The answer to a message of a session that is lost or was never opened here, as bytes."""
    return Envelope(session_number, 0, 0, b"").sealed()


class Session:
    """One session of a link, as one of its ends sees it. `num_received`: messages of the other end that came before."""

    def __init__(self, number: int, num_received: int = 0) -> None:
        self.number = number
        self._num_sent = 0
        self._num_received = num_received
        self._num_told = 0  # received messages that were confirmed to the other end
        self._mark = 0  # number of a message that the other end must confirm; 0: none
        self._num_ticks = 0  # since then, counting those in which something arrived
        self._has_heard = False  # since the last tick

    def seal(self, body: bytes) -> bytes:
        """The bytes of the next message."""
        self._num_sent += 1
        if not self._mark:
            self._mark, self._num_ticks, self._has_heard = self._num_sent, 0, False
        self._num_told = self._num_received
        return _HEAD.pack(_VERSION, self.number, self._num_sent, self._num_received) + body

    def seal_outside(self, body: bytes) -> bytes:
        """The bytes of a message that is not counted, for the last one of a session."""
        self._num_told = self._num_received
        return Envelope(self.number, 0, self._num_received, body).sealed()

    def accept(self, envelope: Envelope) -> bool:
        """Whether its body is new. The caller has decoded the body. SessionLost if messages are missing."""
        if envelope.session_number > self.number:
            raise SessionLost("has begun another session: messages to it were lost")
        if envelope.session_number < self.number:
            return False
        if envelope.confirmed > self._num_sent:
            raise SessionLost(f"has received {envelope.confirmed} messages of {self._num_sent} that were sent to it")

        self._has_heard = True
        if envelope.confirmed >= self._mark:
            self._mark = 0
        if not envelope.number:
            if envelope.body:
                return True
            raise SessionLost("does not know this session")

        num_arrived = self._num_received + bool(envelope.body)
        if envelope.number > num_arrived:
            raise SessionLost(f"has sent {envelope.number} messages, of which {num_arrived} arrived and could be read")
        is_news = envelope.number > self._num_received
        self._num_received = max(self._num_received, envelope.number)
        return is_news

    def tick(self) -> bytes:
        """Counts a tick and returns the bytes of an envelope without a body, to be sent now.

        SessionLost if sent messages do not arrive. Send the bytes only if a message was sent before.
        """
        self._num_ticks += bool(self._mark) and self._has_heard
        self._has_heard = False
        if self._mark and self._num_ticks >= MOST_TICKS:
            raise SessionLost(f"has not received message {self._mark} of {self._num_sent} that were sent to it")
        self._num_told = self._num_received
        return Envelope(self.number, self._num_sent, self._num_received, b"").sealed()

    @property
    def is_settled(self) -> bool:
        """Whether both ends know that every message has arrived, so that no tick is needed."""
        return not self._num_sent or (not self._mark and self._num_told == self._num_received)
