"""Sockets for messages: a Dealer dials one peer, a Router accepts many. Bytes in, bytes out; nothing here blocks.

Every bound socket gets a port that the system chooses. Sockets drop what is queued when they close, and bound what they
queue.
"""

import os
import socket as sockets
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocol.errors import ConfigError, WireError
from protocol.message import MAX_MESSAGE_BYTES
from runtime.curve import NO_HANDSHAKE, OPEN, UNKNOWN_KEY, Security
from runtime.session import ENVELOPE_BYTES

QUEUE_LIMIT = 100_000  # messages; with more, the peer counts as gone
MAX_RECEIVE = 1_000  # messages read at a time, so that a loop keeps turning
BEAT_MS = 2_000  # between heartbeats of a watched connection, which libzmq's threads send
DIAL_MS = 3_000  # an attempt to connect without an answer for so long is given up; the next one follows
REDIAL_S = 5.0  # after a refusal, which a person must mend
SILENT_MS = 10_000  # a watched connection without an answer for so long is lost
RECEIVE_BYTES = 4 * 1024 * 1024  # bytes read at a time, because parsing them takes time too
_MADE = zmq.EVENT_HANDSHAKE_SUCCEEDED
_FINAL = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL  # ZMQ does not dial again after these
_CUT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # the peer hung up: it refuses, or it has just ended
_CUT_OFTEN = 3  # after so many in a row, the peer refuses
_NOT_ALLOWED = 400  # the peer's answer to an unknown key, by RFC 27 of ZeroMQ


def _prepare(socket: "zmq.Socket[bytes]", max_bytes: int = MAX_MESSAGE_BYTES) -> "zmq.Socket[bytes]":
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE_LIMIT)
    socket.setsockopt(zmq.RCVHWM, QUEUE_LIMIT)
    # A larger message ends its connection before it fills our memory.
    socket.setsockopt(zmq.MAXMSGSIZE, ENVELOPE_BYTES + max_bytes)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    return socket


def notice_silence(socket: "zmq.Socket[Any]", *, with_beats: bool) -> None:
    """Has libzmq drop and dial again a connection of `socket` whose path swallows everything, for example because a
    firewall has forgotten it. Call it before the socket dials.

    With beats, libzmq asks the peer's libzmq every BEAT_MS, and no firewall forgets an idle connection. Without beats,
    the peer's kernel must acknowledge what is sent: for a socket that always sends, and whose peer may be paused. By
    itself, our kernel would wait a quarter of an hour, and dial less and less often while the path is down.
    """
    socket.setsockopt(zmq.CONNECT_TIMEOUT, DIAL_MS)
    if with_beats:
        socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)
    else:
        socket.setsockopt(zmq.TCP_MAXRT, SILENT_MS)


def _arrived(socket: "zmq.Socket[bytes]") -> list[list[bytes]]:
    """The parts of each message that has arrived: at most MAX_RECEIVE messages, about RECEIVE_BYTES."""
    messages: list[list[bytes]] = []
    num_bytes = 0
    while len(messages) < MAX_RECEIVE and num_bytes < RECEIVE_BYTES:
        try:
            messages.append(socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            break
        num_bytes += sum(map(len, messages[-1]))
    return messages


def open_router(context: "zmq.Context[zmq.Socket[bytes]]", max_bytes: int = MAX_MESSAGE_BYTES) -> "zmq.Socket[bytes]":
    """A ROUTER that is not bound yet, for messages of at most `max_bytes`. Sending to an unknown peer is an error. A
    peer that dials again replaces its old connection, which the network may have lost unnoticed."""
    socket = _prepare(context.socket(zmq.ROUTER), max_bytes)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    return socket


class Routed(Enum):
    """What became of a message for a peer of a ROUTER."""

    QUEUED = "queued"
    FULL = "full"  # the peer is connected, and does not take what is queued for it
    UNKNOWN = "unknown"  # no such peer is connected


def send_routed(socket: "zmq.Socket[bytes]", identity: bytes, raw: bytes) -> Routed:
    """Queues `raw` for a peer of a ROUTER, unless it is unknown or its queue is full."""
    try:
        socket.send_multipart([identity, raw], zmq.NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            raise
        return Routed.FULL if error.errno == zmq.EAGAIN else Routed.UNKNOWN
    return Routed.QUEUED


def bind_on_host(socket: "zmq.Socket[Any]", host: str, security: Security = OPEN) -> str:
    """Binds a port that the system chooses on `host`, a name or an IPv4 or IPv6 address of this machine. Returns the
    address that peers dial. ConfigError, with the socket closed, if `host` is not an address of this machine."""
    suffix = security.prepare_bind(socket)
    try:
        family, *_, where = sockets.getaddrinfo(host, None, type=sockets.SOCK_STREAM)[0]
        is_v6 = family == sockets.AF_INET6
        socket.setsockopt(zmq.IPV6, int(is_v6))
        socket.bind(f"tcp://[{where[0]}]:0" if is_v6 else f"tcp://{where[0]}:0")
    except (OSError, UnicodeError, zmq.ZMQError) as error:
        socket.close(0)
        raise ConfigError(f"host: got {host!r}, expected an address of this machine ({error})") from error
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode() + suffix


class LinkWatch:
    """Notices when the connection of a socket that dials one peer was lost, made again or refused. ZMQ makes it again
    itself, but messages on the way are lost. Both ends learn that a connection has ended: at once, or when libzmq's
    heartbeats stop. Make it before the socket dials; close it before the socket."""

    def __init__(self, socket: "zmq.Socket[Any]") -> None:
        self.num_made = 0  # connections, at the last look
        self.num_broken = 0
        self.is_up = False  # at the last look
        self.refusal = ""  # why the peer refuses a handshake, at the last look: UNKNOWN_KEY or NO_HANDSHAKE
        self._num_cut = 0  # handshakes in a row
        self._socket = socket
        self._events = socket.get_monitor_socket(_MADE | zmq.EVENT_DISCONNECTED | _FINAL | _CUT)
        self._events.setsockopt(zmq.LINGER, 0)

    def look(self) -> None:
        """Counts what has happened since the last look. Never blocks."""
        while True:
            try:
                monitored = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            event = monitored["event"]
            self.num_made += event == _MADE
            self.num_broken += event == zmq.EVENT_DISCONNECTED
            if event in (_MADE, zmq.EVENT_DISCONNECTED):
                self.is_up = event == _MADE
            self._note_handshake(event, monitored["value"])

    def _note_handshake(self, event: int, value: int) -> None:
        if event == _MADE:
            self._num_cut, self.refusal = 0, ""
        elif event == _CUT:
            self._num_cut += 1
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH and value == _NOT_ALLOWED:
            self.refusal = UNKNOWN_KEY
        elif event & _FINAL or self._num_cut >= _CUT_OFTEN:
            self.refusal = NO_HANDSHAKE

    def close(self) -> None:
        """Stops counting."""
        self._socket.disable_monitor()
        self._events.close(0)


class Dealer:
    """One ordered connection to a Router. Messages sent before the peer answers wait in the queue. zmq.ZMQError if the
    address is invalid, WireError if `security` does not allow it. If `watched`, libzmq's heartbeats notice a lost
    connection; otherwise it is noticed when messages are sent. See notice_silence()."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        identity: bytes,
        watched: bool = False,
        security: Security = OPEN,
    ) -> None:
        self._context = context
        self._address = address
        self._identity = identity
        self._watched = watched
        self._security = security

        self._dial_at: float | None = None  # set while it waits to dial again
        self._open()
        self._dial()

    def _open(self) -> None:
        self.socket = _prepare(self._context.socket(zmq.DEALER))
        self._watch = LinkWatch(self.socket)
        try:
            self.endpoint = self._security.prepare_dial(self.socket, self._address)
        except WireError:
            self.close()
            raise

        self.socket.setsockopt(zmq.ROUTING_ID, self._identity)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self.socket.setsockopt(zmq.IPV6, int("[" in self.endpoint))

        notice_silence(self.socket, with_beats=self._watched)

    def _dial(self) -> None:
        try:
            self.socket.connect(self.endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, raw: bytes) -> bool:
        """Queues `raw`. False if the queue is full because the peer reads nothing."""
        try:
            self.socket.send(raw, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes]:
        """What has arrived: at most MAX_RECEIVE messages, about RECEIVE_BYTES. Joins a message of several parts."""
        return [b"".join(parts) for parts in _arrived(self.socket)]

    def has_returned(self) -> bool:
        """Whether the connection was lost and made again since the last call. Messages of both sides may be lost."""
        before = max(1, self._watch.num_made)
        self._watch.look()
        return self._watch.num_made > before

    @property
    def is_up(self) -> bool:
        """Whether there was a connection at the last call of `tend`."""
        return self._watch.is_up

    def tend(self, now: float) -> str:
        """Why the peer has refused a handshake since the last call (UNKNOWN_KEY or NO_HANDSHAKE of curve.py), or "".

        After a refusal it hangs up and dials again REDIAL_S later: libzmq would stop dialling after some refusals, and
        dial 20 times a second after others. Call it a few times a second, or never.
        """
        if self._dial_at is not None:
            if now >= self._dial_at:
                self._dial_at = None
                self._dial()
            return ""

        self._watch.look()
        if refusal := self._watch.refusal:
            self._hang_up()
            self._dial_at = now + REDIAL_S
        return refusal

    def _hang_up(self) -> None:
        """Replaces the socket and drops its messages: a socket that disconnects would still dial. The old one is closed
        last, so that the new one gets another descriptor."""
        socket, watch = self.socket, self._watch
        self._open()
        watch.close()
        socket.close(0)

    def close(self, linger_ms: int = 0) -> None:
        """Closes the socket. Queued messages may still leave for `linger_ms`."""
        if not self.socket.closed:
            self._watch.close()
            self.socket.close(linger_ms)


class Received(NamedTuple):
    """A message, and the routing id of the peer that has sent it."""

    identity: bytes
    raw: bytes


class Router:
    """A bound socket that many Dealers dial at its `endpoint`. ConfigError if `host` is not ours."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", host: str, security: Security = OPEN) -> None:
        self.socket = open_router(context)
        self.endpoint = bind_on_host(self.socket, host, security)

    def send(self, identity: bytes, raw: bytes) -> bool:
        """Queues `raw` for a peer. False if that peer is unknown or its queue is full."""
        return send_routed(self.socket, identity, raw) is Routed.QUEUED

    def receive(self) -> list[Received]:
        """What has arrived: at most MAX_RECEIVE messages, about RECEIVE_BYTES. Joins a message of several parts."""
        return [Received(identity, b"".join(parts)) for identity, *parts in _arrived(self.socket)]

    def close(self) -> None:
        """Closes the socket and drops what is queued."""
        self.socket.close(0)


class Wake:
    """A file descriptor that another thread can make readable, so that a polling loop turns at once."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Makes the descriptor readable. Any thread may call it."""
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Makes the descriptor unreadable until the next `set`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.fd)
