"""The interface of a backend to the sender: a wire that accepts frames and tells when it has read them."""

from collections.abc import Sequence
from typing import Protocol

Part = bytes | memoryview


class Reading(Protocol):
    """A frame that was given to a wire."""

    @property
    def done(self) -> bool:
        """Whether the wire will not read the frame's parts again."""
        ...


class Wire(Protocol):
    """Ordered connections to peers, by instance. Nothing blocks."""

    def connect(self, instance: int, endpoint: str) -> None:
        """Dials. WireError if `endpoint` is no address."""
        ...

    def send(self, instance: int, parts: Sequence[Part]) -> Reading | None:
        """Takes one frame. It may read the parts later, without a copy. None if it cannot take a frame now."""
        ...

    def broken(self) -> Sequence[int]:
        """Peers to which a connection was lost since the last call, perhaps with frames on the way."""
        ...

    def disconnect(self, instance: int) -> None:
        """Forgets the peer and all that was not yet sent to it."""
        ...

    def close(self) -> None:
        """Forgets every peer. Idempotent."""
        ...
