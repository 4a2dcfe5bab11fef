"""The socket that workers dial: whole messages through one ROUTER, read on the asyncio loop."""

import asyncio
from collections.abc import Callable, Mapping

import zmq

from protocol.errors import AddressInUse, ConfigError
from protocol.messages_gateway import TO_GATEWAY
from runtime.bus import Routed, open_router, send_routed
from runtime.curve import open_security
from runtime.keys import Keys
from runtime.log import get_log

MAX_DRAIN = 200  # messages read at a time, so that clients are written to in between
DRAIN_BYTES = 1024 * 1024  # bytes read at a time, because parsing them takes time too
LINGER_MS = 200  # for the last messages to workers, when the gateway ends
log = get_log("gateway.control")


class ControlSocket:
    """Binds `endpoint` ("tcp://127.0.0.1:0": for port 0 the system chooses). With `keys`, only workers with an allowed
    key may connect. Call `start` on the running loop."""

    def __init__(self, endpoint: str, keys: Keys | None = None) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[bytes, bytes], None] | None = None
        self._is_scheduled = False
        self.is_full = False  # the last message was not queued, because its worker does not take those before it
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._security = open_security(keys, self._context, log)
        self._socket = open_router(self._context, TO_GATEWAY.max_bytes)
        self._security.prepare_bind(self._socket)  # workers know our key already

        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            kind = AddressInUse if error.errno == zmq.EADDRINUSE else ConfigError
            raise kind(f"control: cannot listen on {endpoint!r}: {error}", param="control") from error

        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes), "the option is bytes"
        self.endpoint = bound.rstrip(b"\0").decode("ascii")

    def refused(self) -> Mapping[str, int]:
        """Connections that were refused so far, by reason; empty without keys. Also logs new ones."""
        return self._security.refused()

    def start(self, on_message: Callable[[bytes, bytes], None]) -> None:
        """Calls `on_message(identity, raw)` on the loop for every message that arrives."""
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._schedule()

    def send(self, identity: bytes, raw: bytes) -> bool:
        """Queues a message. False if that worker is not connected or its queue is full."""
        try:
            routed = send_routed(self._socket, identity, raw)
            self.is_full = routed is Routed.FULL
            return routed is Routed.QUEUED
        finally:
            self._schedule()  # the descriptor signals a change only once, and sending may have consumed the signal

    def close(self) -> None:
        """Closes the socket. What is queued has LINGER_MS to leave."""
        if self._loop is not None and not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
        self._on_message = None
        self._socket.close(LINGER_MS)
        self._security.close()
        self._context.term()

    def _schedule(self) -> None:
        if self._loop is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._is_scheduled = False
        num_bytes = 0
        for _ in range(MAX_DRAIN):
            if num_bytes >= DRAIN_BYTES:
                break

            if self._on_message is None:  # closed meanwhile
                return

            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

            raw = parts[1] if len(parts) == 2 else b"".join(parts[1:])
            num_bytes += len(raw)
            self._on_message(parts[0], raw)
        self._schedule()
