"""What sender and receiver need of memory that is written in place: a peer's pages, and our own on a device."""

from typing import Protocol

from protocol.kv_layout import KvLayout
from protocol.messages_handoff import PoolOffer
from transfer.in_place.moving import Moving
from transfer.memory import PageMemory
from transfer.plan.copying import Copy, Runs


class Pools(Protocol):
    """Memory of peers that is mapped here; see backends.shm.PoolMaps."""

    def attach(self, instance: int, layout: KvLayout, offer: PoolOffer | None) -> bool:
        """Maps what a peer offers; False if that cannot be, or WireError if it must."""
        ...

    def get(self, instance: int) -> "MappedMemory | None":
        """A peer's memory, if it is mapped."""
        ...

    def device(self, instance: int) -> "DeviceMemory | None":
        """A peer's device memory, if it is mapped."""
        ...

    def drop(self, instance: int) -> None:
        """Lets go. Idempotent."""
        ...

    def close(self) -> None:
        """Lets go of all. Idempotent."""
        ...


class MappedMemory(PageMemory, Protocol):
    """A peer's pages."""

    @property
    def num_pages(self) -> int:
        """Of each layer, the padding page among them."""
        ...


class DeviceMemory(Protocol):
    """A peer's pages where only a device reaches them."""

    @property
    def layout(self) -> KvLayout:
        """The shape of it."""
        ...

    @property
    def num_pages(self) -> int:
        """Of each layer, the padding page among them."""
        ...

    def begin(self, layer: int, copy: Copy) -> Moving:
        """Has our pages written into the peer's."""
        ...


class Reader(Protocol):
    """Our pages where only a device reaches them."""

    def begin(self, layer: int, written: Runs) -> Moving:
        """Has it sum what was written there."""
        ...
