"""KV pages in device memory that another process writes, the copies there, and the checksum of what is copied.

    decode   offers a handle of its device memory, besides the seat and its host memory, if it has any
    prefill  takes the seat, maps the device memory, else the host's, and reports which, with its process id
    decode   treats the pages as writable until the seat is free and the process is not ending

The last condition is not needed for host memory: of a process that is killed, the kernel frees the seat some moments
before it takes the device away.

    copy -> tiles: pieces of one size, the largest that divides every extent -> a table for the kernel

The device checksum of words w[0], w[1], ... in prompt order is the sum of scramble(w[i] ^ i * STEP), modulo 2^64. For
each i this is a bijection of w[i]: xor with a constant, odd multipliers, xor with the word's own right shift. So a
change of one word always changes the sum. Any other difference, such as words that changed places, is missed with a
chance of about 2^-64, if scramble() behaves like a random bijection. It does not protect against intent. Addends may be
added in any order, so a device can compute it.
A device is given several layers of one group in one call, because each call costs the host some 100 us.
Suffixes: L layers of a group, U tiles, W words of a layer.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import gcd
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from protocol.errors import WireError
from protocol.kv_layout import KvLayout, LayerLayout
from transfer.in_place.writers import hold_seat
from transfer.offers import DeviceHandle, PoolOffer
from transfer.plan import Copy, Extents, Ints64

WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16}  # by their bytes
WRAP: Final = (1 << 64) - 1
STEP: Final = 0x1E3779B97F4A7C15  # odd and below 2^63, so that signed and unsigned integers agree
FIRST: Final = 0x3F58476D1CE4E5B9
SECOND: Final = 0x14D049BB133111EB


def word_bytes(layout: LayerLayout) -> int:
    """Bytes of the words of a layer that are summed. Both ends get the same, whatever their page sizes."""
    return gcd(layout.head_bytes, max(WORDS))


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles `sources_U[i]` of `num_words` words belong at `targets_U[i]`. Both count from the beginning of a layer, in
    prompt order."""

    num_words: int
    sources_U: Ints64
    targets_U: Ints64


def tiles_to_write(copy: Copy, source: LayerLayout, target: LayerLayout) -> Tiles:
    """The tiles of a copy from pages of one layout to pages of another."""
    tile = gcd(copy.sources.row_bytes, copy.targets.row_bytes, source.page_bytes, target.page_bytes)
    return Tiles(tile // word_bytes(source), copy.sources.rows(tile), copy.targets.rows(tile))


def tiles_to_read(written: Extents, layout: LayerLayout) -> Tiles:
    """The tiles of what was written, in the same order."""
    tile = gcd(written.row_bytes, layout.page_bytes)
    rows_U = written.rows(tile)
    return Tiles(tile // word_bytes(layout), rows_U, rows_U)


class Moving(Protocol):
    """Work that was given to a device. It cannot be called back, only waited for."""

    @property
    def done(self) -> bool:
        """Whether it has completed: it reads and writes nothing any more, and its writes are visible everywhere."""

    def wait(self) -> None:
        """Blocks until `done`."""

    @property
    def totals(self) -> Sequence[int]:
        """The device checksum of what was moved or read of each layer. Valid once `done`."""


class Copies(Protocol):
    """A device's queue of copies. They run in the order in which they were given, beside the model's work."""

    def begin(self, source_LW: Tensor, target_LW: Tensor | None, tiles: Tiles) -> Moving:
        """Copies the same tiles of each layer's words and sums them. Without a target it only sums."""


class DevicePages(Protocol):
    """KV pages in the memory of a device."""

    @property
    def layout(self) -> KvLayout:
        """Their layout."""

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""

    @property
    def device_bytes(self) -> Tensor:
        """All bytes, contiguous, uint8: KvLayout.span() tells where each layer lies."""


class Opened(Protocol):
    """Memory of another process, mapped here."""

    @property
    def memory(self) -> Tensor:
        """Its bytes, uint8."""

    def close(self) -> None:
        """Unmaps it."""


class Ipc(Protocol):
    """Shares device memory between processes. See cuda_ipc.CudaIpc."""

    def export(self, memory: Tensor) -> DeviceHandle:
        """The handle by which another process maps it. WireError names why there is none."""

    def open(self, offered: DeviceHandle) -> Opened:
        """Maps what another process exports. WireError names why it cannot."""


@dataclass(frozen=True)
class AtDevice:
    """A worker's own device memory, and the means to move KV there."""

    pages: DevicePages
    copies: Copies
    ipc: Ipc

    def export(self) -> DeviceHandle:
        """The handle by which others map it. WireError names why there is none."""
        return self.ipc.export(self.pages.device_bytes)


class LayerWords:
    """The words of all layers of a pool of `num_pages` pages. They may be longer in one group than in another."""

    def __init__(self, memory: Tensor, layout: KvLayout, num_pages: int) -> None:
        self._layout = layout
        spans = layout.group_spans(num_pages)
        words = (WORDS[word_bytes(layer)] for layer in layout.group_layouts)
        self._groups_LW = [
            memory[span].view(kind).view(group.num_layers, -1)
            for span, kind, group in zip(spans, words, layout.groups, strict=True)
        ]

    def of(self, layers: range) -> Tensor:
        """The words of `layers` of one group, which lie one behind the other."""
        group, first = self._layout.place(layers[0])
        assert layers.step == 1 and self._layout.place(layers[-1]) == (group, first + len(layers) - 1), layers
        return self._groups_LW[group][first : first + len(layers)]


class DeviceReader:
    """The decode side: sums what was written into its pages."""

    def __init__(self, memory: DevicePages, copies: Copies) -> None:
        self._layout = memory.layout
        self._words = LayerWords(memory.device_bytes, memory.layout, memory.num_pages)
        self._copies = copies
        self._tiles: WeakKeyDictionary[Extents, Tiles] = WeakKeyDictionary()  # one plan serves all layers of a group

    def begin(self, layers: range, written: Extents) -> Moving:
        """Begins to sum what was written into each of these layers, which are of one group."""
        if (tiles := self._tiles.get(written)) is None:
            tiles = self._tiles[written] = tiles_to_read(written, self._layout.layer(layers[0]))
        return self._copies.begin(self._words.of(layers), None, tiles)


class DevicePool:
    """The prefill side: device pages of another process. Holds the seat until close()."""

    def __init__(self, ours: AtDevice, layout: KvLayout, offer: PoolOffer) -> None:
        """Takes the seat, then maps the memory. WireError names why it cannot."""
        self.layout = layout
        self.num_pages = offer.num_pages
        self._from = ours.pages.layout
        self._copies = ours.copies
        self._tiles: WeakKeyDictionary[Copy, Tiles] = WeakKeyDictionary()  # one plan serves all layers of a group

        if offer.device is None:
            raise WireError("decode offers no device memory to write in")
        num_bytes = layout.pool_bytes(offer.num_pages)
        if offer.device.num_bytes != num_bytes:
            raise WireError(f"decode's device memory has {offer.device.num_bytes} bytes, expected {num_bytes}")

        self._sources = LayerWords(ours.pages.device_bytes, self._from, ours.pages.num_pages)
        with ExitStack() as undo:  # the driver keeps memory for as long as it is mapped anywhere
            fd = hold_seat(offer)
            undo.callback(os.close, fd)
            opened = ours.ipc.open(offer.device)
            undo.callback(opened.close)
            self._targets = LayerWords(opened.memory, layout, offer.num_pages)
            self._held = undo.pop_all()

    def begin(self, layers: range, copy: Copy) -> Moving:
        """Begins to write from our pages of these layers, which are of one group, into the peer's."""
        if (tiles := self._tiles.get(copy)) is None:
            tiles = self._tiles[copy] = tiles_to_write(copy, self._from.layer(layers[0]), self.layout.layer(layers[0]))
        return self._copies.begin(self._sources.of(layers), self._targets.of(layers), tiles)

    def close(self) -> None:
        """Unmaps the memory, then frees the seat. The caller has made sure that nothing writes any more."""
        del self._targets
        self._held.close()
