"""The interface of a backend to the receiver: frames that arrive, and prefill workers whose pages decode reads."""

from collections.abc import Sequence
from typing import Any, Protocol

import zmq

Pollable = zmq.Socket[Any] | int  # something to wait for: a socket or a descriptor


class Arrivals(Protocol):
    """Frames as they arrive, each a list of parts with the header first."""

    @property
    def address(self) -> str:
        """The address that peers dial."""
        ...

    def receive(self) -> Sequence[memoryview] | None:
        """The next frame, or None if there is none now. Never blocks."""
        ...

    @property
    def backend(self) -> str:
        """The backend's name."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether frames of one transfer arrive in the order in which they were sent."""
        ...

    def pollables(self) -> list[Pollable]:
        """What becomes readable when a frame arrives."""
        ...

    def close(self) -> None:
        """Accepts no more frames. Idempotent."""
        ...


class Sources(Protocol):
    """Prefill workers whose pages decode reads."""

    def meet(self, instance: int, export: bytes) -> None:
        """That worker accepts jobs and exports these bytes. WireError if its KV cannot be read."""
        ...

    def lose(self, instance: int) -> None:
        """Stops reading from that worker. Idempotent."""
        ...
