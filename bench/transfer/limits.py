"""The limits that no transfer can exceed: one copy and one checksum in memory; the same after a raw socket.

Bytes move in pieces as large as the product's frames.
"""

import socket

import xxhash

from bench.transfer.blocks import Blocks, HostPages
from bench.transfer.ends import HOST, MOVE_S, End
from runtime.clock import MonotonicClock
from transfer.plan import FRAME_BYTES

PIECE_BYTES = FRAME_BYTES


class CopyEnd(End):
    """memcpy from one memory to another, and one pass of the checksum."""

    def __init__(self, memory: HostPages, blocks: Blocks) -> None:
        super().__init__(memory, blocks)
        self._pieces = list(memory.pieces(blocks.num_bytes, PIECE_BYTES))
        self._target = HostPages(memory.layout, memory.num_pages)

    def move(self, check: bool) -> dict[str, float]:
        """Copies and sums."""
        clock, digest = MonotonicClock(), xxhash.xxh3_64()
        targets = self._target.pieces(sum(map(len, self._pieces)), PIECE_BYTES)
        start = clock.now()
        for piece, target in zip(self._pieces, targets, strict=True):
            target[:] = piece
            if check:
                digest.update(piece)
        return {"start": start, "end": clock.now()}


class SocketSendEnd(End):
    """Sends when the other end asks with one byte."""

    def __init__(self, memory: HostPages, blocks: Blocks) -> None:
        super().__init__(memory, blocks)
        self._pieces = list(memory.pieces(blocks.num_bytes, PIECE_BYTES))
        self._server = socket.create_server((HOST, 0))
        self._socket: socket.socket | None = None

    @property
    def address(self) -> str:
        """The port."""
        return str(self._server.getsockname()[1])

    def meet(self, address: str) -> None:
        """Accepts one connection."""
        self._socket, _ = self._server.accept()
        self._socket.settimeout(MOVE_S)

    def move(self, check: bool) -> dict[str, float]:
        """Sends all pieces."""
        assert self._socket is not None, "meet() comes first"
        self._socket.recv(1)
        start = MonotonicClock().now()
        for piece in self._pieces:
            self._socket.sendall(piece)
        return {"start": start}

    def close(self) -> None:
        """Closes the sockets."""
        if self._socket is not None:
            self._socket.close()
        self._server.close()


class SocketReceiveEnd(End):
    """recv_into a buffer, checksum, copy to its place."""

    def __init__(self, memory: HostPages, blocks: Blocks) -> None:
        super().__init__(memory, blocks)
        self._pieces = list(memory.pieces(blocks.num_bytes, PIECE_BYTES))
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._socket: socket.socket | None = None

    def meet(self, address: str) -> None:
        """Dials the other end."""
        self._socket = socket.create_connection((HOST, int(address)), timeout=MOVE_S)

    def move(self, check: bool) -> dict[str, float]:
        """Asks for the bytes and receives them."""
        assert self._socket is not None, "meet() comes first"
        digest = xxhash.xxh3_64()
        self._socket.sendall(b"!")

        for piece in self._pieces:
            missing = len(piece)
            while missing:
                got = self._socket.recv_into(self._buffer[len(piece) - missing :], missing)
                if not got:
                    raise ConnectionError("the other end has closed")
                missing -= got
            if check:
                digest.update(self._buffer[: len(piece)])
            piece[:] = self._buffer[: len(piece)]
        return {"end": MonotonicClock().now()}

    def close(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close()
