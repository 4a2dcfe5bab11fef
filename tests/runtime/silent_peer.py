"""A peer whose path is gone: it speaks ZeroMQ's handshake, and from then on it swallows what comes and says nothing."""

import socket
import threading
from contextlib import suppress
from typing import Self

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def _ready(kind: bytes) -> bytes:
    """The command READY of a socket of this type, as RFC 37 of ZeroMQ draws it."""
    name = b"Socket-Type"
    body = b"\x05READY" + bytes([len(name)]) + name + len(kind).to_bytes(4, "big") + kind
    return b"\x04" + bytes([len(body)]) + body


class SilentPeer:
    """Listens at `endpoint` as a socket of `kind`, such as b"PULL"."""

    def __init__(self, kind: bytes) -> None:
        self._kind = kind
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # the server was closed
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._swallow, args=(connection,), daemon=True).start()

    def _swallow(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(GREETING + _ready(self._kind))
            while connection.recv(65536):
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
