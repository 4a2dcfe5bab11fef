"""KV pages in device memory that another process writes: decode offers them, prefill maps and writes them.

    decode   offers a handle of its device memory, besides the seat and its host memory, if it has any
    prefill  takes the seat, maps the device memory, else the host's, and reports which, with its process id
    decode   treats the pages as writable until the seat is free and the process is not ending

The last condition is not needed for host memory: of a process that is killed, the kernel frees the seat some moments
before it takes the device away.
"""

import os
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from protocol.errors import WireError
from protocol.kv_layout import KvLayout
from transfer.in_place.device_moves import WORDS, Copies, Moving, Units, units_to_read, units_to_write, word_bytes
from transfer.in_place.seats import hold_seat
from transfer.offers import DeviceHandle, PoolOffer
from transfer.plan.copying import Copy, Runs


class DevicePages(Protocol):
    """KV pages in the memory of a device."""

    @property
    def layout(self) -> KvLayout:
        """Their layout."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""
        ...

    @property
    def device_bytes(self) -> Tensor:
        """All bytes, contiguous, uint8: KvLayout.span() tells where each layer lies."""
        ...


class Opened(Protocol):
    """Memory of another process, mapped here."""

    @property
    def memory(self) -> Tensor:
        """Its bytes, uint8."""
        ...

    def close(self) -> None:
        """Unmaps it."""
        ...


class Ipc(Protocol):
    """Shares device memory between processes. See cuda_driver.CudaIpc."""

    def export(self, memory: Tensor) -> DeviceHandle:
        """The handle by which another process maps it. WireError names why there is none."""
        ...

    def open(self, offered: DeviceHandle) -> Opened:
        """Maps what another process exports. WireError names why it cannot."""
        ...


@dataclass(frozen=True)
class AtDevice:
    """A worker's own device memory, and the means to move KV there."""

    pages: DevicePages
    copies: Copies
    ipc: Ipc

    def export(self) -> DeviceHandle:
        """The handle by which others map it. WireError names why there is none."""
        return self.ipc.export(self.pages.device_bytes)


def words_by_layer(memory: Tensor, layout: KvLayout, num_pages: int) -> list[Tensor]:
    """The words of each layer of a pool of `num_pages` pages. Words may be longer in one group than in another."""
    layers = range(layout.num_layers)
    return [memory[layout.span(num_pages, at, 0, num_pages)].view(WORDS[word_bytes(layout.layer(at))]) for at in layers]


class DeviceReader:
    """The decode side: sums what was written into its pages."""

    def __init__(self, memory: DevicePages, copies: Copies) -> None:
        self._layout = memory.layout
        self._words = words_by_layer(memory.device_bytes, memory.layout, memory.num_pages)
        self._copies = copies
        self._units: WeakKeyDictionary[Runs, Units] = WeakKeyDictionary()  # one plan serves all layers of a group

    def begin(self, layer: int, written: Runs) -> Moving:
        """Begins to sum what was written."""
        if (units := self._units.get(written)) is None:
            units = self._units[written] = units_to_read(written, self._layout.layer(layer))
        return self._copies.begin(self._words[layer], None, units)


class DevicePool:
    """The prefill side: device pages of another process. Holds the seat until close()."""

    def __init__(self, ours: AtDevice, layout: KvLayout, offer: PoolOffer) -> None:
        """Takes the seat, then maps the memory. WireError names why it cannot."""
        self.layout = layout
        self.num_pages = offer.num_pages
        self._from = ours.pages.layout
        self._copies = ours.copies
        self._units: WeakKeyDictionary[Copy, Units] = WeakKeyDictionary()  # one plan serves all layers of a group

        if offer.device is None:
            raise WireError("decode offers no device memory to write in")
        num_bytes = layout.pool_bytes(offer.num_pages)
        if offer.device.num_bytes != num_bytes:
            raise WireError(f"decode's device memory has {offer.device.num_bytes} bytes, expected {num_bytes}")

        self._fd = hold_seat(offer)
        try:
            self._opened = ours.ipc.open(offer.device)
        except WireError:
            os.close(self._fd)
            raise

        self._sources = words_by_layer(ours.pages.device_bytes, self._from, ours.pages.num_pages)
        self._targets = words_by_layer(self._opened.memory, layout, offer.num_pages)

    def begin(self, layer: int, copy: Copy) -> Moving:
        """Begins to write from our pages into the peer's."""
        if (units := self._units.get(copy)) is None:
            units = self._units[copy] = units_to_write(copy, self._from.layer(layer), self.layout.layer(layer))
        return self._copies.begin(self._sources[layer], self._targets[layer], units)

    def close(self) -> None:
        """Unmaps the memory, then frees the seat. The caller has made sure that nothing writes any more."""
        del self._targets
        self._opened.close()
        os.close(self._fd)
