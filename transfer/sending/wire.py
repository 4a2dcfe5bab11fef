"""What the sender needs of a backend: a wire that takes frames, and says when it has read them."""

from collections.abc import Sequence
from typing import Protocol

Part = bytes | memoryview


class Reading(Protocol):
    """A frame given to a wire."""

    @property
    def done(self) -> bool:
        """Whether the wire has read the frame's parts for the last time."""
        ...


class Wire(Protocol):
    """Ordered connections to peers, by instance. Nothing blocks."""

    def connect(self, instance: int, endpoint: str) -> None:
        """Dials; WireError if `endpoint` is no address."""
        ...

    def send(self, instance: int, parts: Sequence[Part]) -> Reading | None:
        """Takes one frame, whose parts it may read later without a copy; None if it cannot take any now."""
        ...

    def broken(self) -> Sequence[int]:
        """Peers to which a connection was lost since the last call, and frames perhaps that were on the way."""
        ...

    def disconnect(self, instance: int) -> None:
        """Forgets the peer and what was not yet sent to it."""
        ...

    def close(self) -> None:
        """Forgets every peer. Idempotent."""
        ...
