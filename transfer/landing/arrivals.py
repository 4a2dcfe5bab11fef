"""What the receiver needs of a backend: frames as they come, and prefill workers whose pages are read from here."""

from collections.abc import Sequence
from typing import Any, Protocol

import zmq

Pollable = zmq.Socket[Any] | int  # what can be waited for: a socket or a descriptor


class Arrivals(Protocol):
    """Frames as they come, each a list of parts, the header first."""

    @property
    def address(self) -> str:
        """What peers dial."""
        ...

    def receive(self) -> Sequence[memoryview] | None:
        """The next frame, or None when there is none now. Never blocks."""
        ...

    @property
    def backend(self) -> str:
        """The name of what brings them."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether frames of one transfer come in the order in which they were sent."""
        ...

    def pollables(self) -> list[Pollable]:
        """What becomes readable when a frame comes."""
        ...

    def close(self) -> None:
        """Takes no more. Idempotent."""
        ...


class Sources(Protocol):
    """Prefill workers whose pages are read from here."""

    def meet(self, instance: int, export: bytes) -> None:
        """That worker takes jobs, and exports this. WireError if its KV could not be had."""
        ...

    def lose(self, instance: int) -> None:
        """Nothing is read from that worker any more. Idempotent."""
        ...
