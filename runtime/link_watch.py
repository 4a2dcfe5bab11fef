"""Notices that a connection was lost, or has come back: ZMQ makes it again by itself, and what was on the way is gone.

A connection that ends says so to both ends, at once or when the heartbeats of the transport stay away. What it does not
know: what was lost.
"""

from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message


class LinkWatch:
    """Counts the connections of one socket that dials one peer; to be made before it dials. Close it before the
    socket."""

    def __init__(self, socket: "zmq.Socket[Any]") -> None:
        self.num_made = 0  # connections, until the last look
        self.num_broken = 0
        self._socket = socket
        self._events = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._events.setsockopt(zmq.LINGER, 0)

    def look(self) -> None:
        """Counts what has happened since the last look; never blocks."""
        while True:
            try:
                event = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                return
            self.num_made += event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.num_broken += event == zmq.EVENT_DISCONNECTED

    def close(self) -> None:
        """Counts no more."""
        self._socket.disable_monitor()
        self._events.close(0)
