"""ZMTP 3, as far as a proxy needs it: where greetings, commands and messages end in a stream of bytes.

    greeting (64 bytes), then frames: a byte of flags, a length of 1 or 8 bytes, the body

Encrypted connections are not parsed.
"""

from collections.abc import Sequence

GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
Parts = tuple[bytes, ...]


class ZmtpReader:
    """One direction of one connection."""

    def __init__(self) -> None:
        self._greeting_left = GREETING_BYTES
        self._buffer = bytearray()
        self._parts: list[bytes] = []

    def feed(self, raw: bytes) -> list[bytes | Parts]:
        """What is there now, in order: the greeting piece by piece and each command as they came (bytes), messages
        whole, as their parts."""
        messages: list[bytes | Parts] = []
        if self._greeting_left:
            greeting, raw = raw[: self._greeting_left], raw[self._greeting_left :]
            self._greeting_left -= len(greeting)
            messages.append(greeting)
        self._buffer += raw
        while (frame := self._frame()) is not None:
            flags, head, end = frame
            whole = bytes(self._buffer[:end])
            del self._buffer[:end]
            if flags & COMMAND:
                messages.append(whole)
                continue
            self._parts.append(whole[head:])
            if not flags & MORE:
                messages.append(tuple(self._parts))
                self._parts = []
        return messages

    def _frame(self) -> tuple[int, int, int] | None:
        """Flags, where the body begins and where it ends, of the first frame, once it is there in full."""
        if len(self._buffer) < 2:
            return None
        flags = self._buffer[0]
        head = 9 if flags & LONG else 2
        end = head + int.from_bytes(self._buffer[1:head], "big")
        return (flags, head, end) if len(self._buffer) >= max(head, end) else None


def to_bytes(parts: Sequence[bytes]) -> bytes:
    """A message as it goes over the wire."""
    raw = bytearray()
    for index, part in enumerate(parts):
        more = MORE if index + 1 < len(parts) else 0
        if len(part) > 255:
            raw += bytes([more | LONG]) + len(part).to_bytes(8, "big")
        else:
            raw += bytes([more, len(part)])
        raw += part
    return bytes(raw)
