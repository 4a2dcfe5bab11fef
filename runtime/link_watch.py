"""Notices that a connection was lost, has come back, or was refused: ZMQ makes it again by itself, and what was on the
way is gone.

A connection that ends says so to both ends, at once or when the heartbeats of the transport stay away. What it does not
know: what was lost.
"""

from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

UNKNOWN_KEY, NO_HANDSHAKE = "key", "handshake"  # why a connection is refused
_MADE = zmq.EVENT_HANDSHAKE_SUCCEEDED
_FINAL = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL  # after these, ZMQ does not dial again
_CUT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # the other end hung up: it refuses, or it ends just now
_CUT_OFTEN = 3  # in a row, and it refuses
_NOT_ALLOWED = 400  # as RFC 27 of ZeroMQ numbers what the other end may answer to a key


class LinkWatch:
    """Counts the connections of one socket that dials one peer; to be made before it dials. Close it before the
    socket."""

    def __init__(self, socket: "zmq.Socket[Any]") -> None:
        self.num_made = 0  # connections, until the last look
        self.num_broken = 0
        self.is_up = False  # as the last look found it
        self.refusal = ""  # why the other end refuses a handshake, as the last look says: UNKNOWN_KEY or NO_HANDSHAKE
        self._num_cut = 0  # handshakes in a row
        self._socket = socket
        self._events = socket.get_monitor_socket(_MADE | zmq.EVENT_DISCONNECTED | _FINAL | _CUT)
        self._events.setsockopt(zmq.LINGER, 0)

    def look(self) -> None:
        """Counts what has happened since the last look; never blocks."""
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
        """Counts no more."""
        self._socket.disable_monitor()
        self._events.close(0)
