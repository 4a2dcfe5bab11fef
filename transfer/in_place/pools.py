"""Memory that is written in place, as sender and receiver use it: a peer's pages, and our own on a device."""

from typing import Protocol

from protocol.kv_layout import KvLayout
from protocol.messages_handoff import PoolOffer
from transfer.in_place.moving import Moving
from transfer.memory import PageMemory
from transfer.plan.copying import Copy, Runs


class Pools(Protocol):
    """Mapped memory of peers. See backends.shm.PoolMaps."""

    def attach(self, instance: int, layout: KvLayout, offer: PoolOffer | None) -> bool:
        """Maps what a peer offers. False if it cannot, or WireError if it must."""
        ...

    def get(self, instance: int) -> "MappedMemory | None":
        """A peer's memory, if it is mapped."""
        ...

    def device(self, instance: int) -> "DeviceMemory | None":
        """A peer's device memory, if it is mapped."""
        ...

    def drop(self, instance: int) -> None:
        """Unmaps it. Idempotent."""
        ...

    def close(self) -> None:
        """Unmaps everything. Idempotent."""
        ...


class MappedMemory(PageMemory, Protocol):
    """A peer's pages in host memory."""

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""
        ...


class DeviceMemory(Protocol):
    """A peer's pages in device memory."""

    @property
    def layout(self) -> KvLayout:
        """Their layout."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""
        ...

    def begin(self, layer: int, copy: Copy) -> Moving:
        """Begins to write our pages into the peer's."""
        ...


class Reader(Protocol):
    """Our pages in device memory."""

    def begin(self, layer: int, written: Runs) -> Moving:
        """Begins to sum what was written."""
        ...
