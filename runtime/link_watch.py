"""Notices when a connection was lost, made again or refused. ZMQ makes it again itself, but messages on the way are
lost.

Both ends learn that a connection has ended: at once, or when libzmq's heartbeats stop.
"""

from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

UNKNOWN_KEY, NO_HANDSHAKE = "key", "handshake"  # why a connection was refused
_MADE = zmq.EVENT_HANDSHAKE_SUCCEEDED
_FINAL = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL  # ZMQ does not dial again after these
_CUT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # the peer hung up: it refuses, or it has just ended
_CUT_OFTEN = 3  # after so many in a row, the peer refuses
_NOT_ALLOWED = 400  # the peer's answer to an unknown key, by RFC 27 of ZeroMQ


class LinkWatch:
    """Counts the connections of one socket that dials one peer. Make it before the socket dials; close it before the
    socket."""

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
                found = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            event = found["event"]
            self.num_made += event == _MADE
            self.num_broken += event == zmq.EVENT_DISCONNECTED
            if event in (_MADE, zmq.EVENT_DISCONNECTED):
                self.is_up = event == _MADE
            self._note_handshake(event, found["value"])

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
