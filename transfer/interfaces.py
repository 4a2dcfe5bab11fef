"""The interfaces that memory and backends implement for transfer/: pages by number, and a backend's two ends.

Memory gives pages of each layer by number. A backend has two ends: the sender's Wire accepts frames and reports when it
has read them; the receiver's Arrivals return the frames that have come.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zmq

from protocol.kv_layout import KvLayout


class PageMemory(Protocol):
    """KV pages in host memory, by number."""

    @property
    def layout(self) -> KvLayout:
        """Its layout."""

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """Writable bytes of one layer from page 0 to the last of `pages`, without a copy. Touch no other pages."""


class Seated(Protocol):
    """Memory in which other processes take seats."""

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""

    @property
    def shared_fd(self) -> int:
        """Its descriptor."""

    def new_seat(self) -> int:
        """A seat that was never offered before, in no life of this worker."""


class SharedPages(Seated, PageMemory, Protocol):
    """KV pages that other processes may map. The shared memory holds only these pages, layer after layer."""

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        """Writable bytes of pages [page_start, page_start + num_pages) of one layer, contiguous, without a copy."""


Part = bytes | memoryview
Pollable = zmq.Socket[Any] | int  # something to wait for: a socket or a descriptor


class Reading(Protocol):
    """A frame that was given to a wire."""

    @property
    def done(self) -> bool:
        """Whether the wire will not read the frame's parts again."""


class Wire(Protocol):
    """Ordered connections to peers, by instance. Nothing blocks."""

    def connect(self, instance: int, endpoint: str) -> None:
        """Dials. WireError if `endpoint` is no address."""

    def send(self, instance: int, parts: Sequence[Part]) -> Reading | None:
        """Takes one frame. It may read the parts later, without a copy. None if it cannot take a frame now."""

    def broken(self) -> Sequence[int]:
        """Peers to which a connection was lost since the last call, perhaps with frames on the way."""

    def disconnect(self, instance: int) -> None:
        """Forgets the peer and all that was not yet sent to it."""

    def close(self) -> None:
        """Forgets every peer. Idempotent."""


class Arrivals(Protocol):
    """Frames as they arrive, each a list of parts with the header first."""

    @property
    def address(self) -> str:
        """The address that peers dial."""

    def receive(self) -> Sequence[memoryview] | None:
        """The next frame, or None if there is none now. Never blocks."""

    @property
    def backend(self) -> str:
        """The backend's name."""

    @property
    def is_ordered(self) -> bool:
        """Whether frames of one transfer arrive in the order in which they were sent."""

    def pollables(self) -> list[Pollable]:
        """Sockets and descriptors that become readable when a frame arrives."""

    def close(self) -> None:
        """Accepts no more frames. Idempotent."""

    def meet(self, instance: int, export: bytes) -> None:
        """That prefill worker accepts jobs and exports these bytes. WireError if its KV cannot be read."""

    def lose(self, instance: int) -> None:
        """Reads nothing more from that prefill worker. Idempotent."""
