"""Copies of KV within device memory, in units of one kernel program, and the checksum of what is copied.

    copy -> units: pieces of one size, the largest that divides every run -> a table for the kernel

The device checksum of words w[0], w[1], ... in prompt order is the sum of scramble(w[i] ^ i * STEP), modulo 2^64. For
each i this is a bijection of w[i]: xor with a constant, odd multipliers, xor with the word's own right shift. So a
change of one word always changes the sum. Any other difference, such as words that changed places, is missed with a
chance of about 2^-64, if scramble() behaves like a random bijection. It does not protect against intent. Addends may be
added in any order, so a device can compute it.
Suffixes: U units, W words of a layer.
"""

from dataclasses import dataclass
from math import gcd
from typing import Final, Protocol

import torch
from torch import Tensor

from protocol.kv_layout import LayerLayout
from transfer.plan.copying import Copy, Runs
from transfer.plan.reslice import Ints64

WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16}  # by their bytes
WRAP: Final = (1 << 64) - 1
STEP: Final = 0x1E3779B97F4A7C15  # odd and below 2^63, so that signed and unsigned integers agree
FIRST: Final = 0x3F58476D1CE4E5B9
SECOND: Final = 0x14D049BB133111EB


def word_bytes(layout: LayerLayout) -> int:
    """Bytes of the words of a layer that are summed. Both ends get the same, whatever their page sizes."""
    return gcd(layout.head_bytes, max(WORDS))


@dataclass(frozen=True, eq=False)
class Units:
    """Units `sources_U[i]` of `num_words` words belong at `targets_U[i]`. Both count from the beginning of a layer, in
    prompt order."""

    num_words: int
    sources_U: Ints64
    targets_U: Ints64


def units_to_write(copy: Copy, source: LayerLayout, target: LayerLayout) -> Units:
    """The units of a copy from pages of one layout to pages of another."""
    unit = gcd(copy.sources.unit, copy.targets.unit, source.page_bytes, target.page_bytes)
    return Units(unit // word_bytes(source), copy.sources.rows(unit), copy.targets.rows(unit))


def units_to_read(written: Runs, layout: LayerLayout) -> Units:
    """The units of what was written, in the same order."""
    unit = gcd(written.unit, layout.page_bytes)
    rows_U = written.rows(unit)
    return Units(unit // word_bytes(layout), rows_U, rows_U)


class Moving(Protocol):
    """Work that was given to a device. It cannot be called back, only waited for."""

    @property
    def done(self) -> bool:
        """Whether it has completed: it reads and writes nothing any more, and its writes are visible everywhere."""
        ...

    def wait(self) -> None:
        """Blocks until `done`."""
        ...

    @property
    def total(self) -> int:
        """The device checksum of what was moved or read. Valid once `done`."""
        ...


class Copies(Protocol):
    """A device's queue of copies. They run in the order in which they were given, beside the model's work."""

    def begin(self, source_W: Tensor, target_W: Tensor | None, units: Units) -> Moving:
        """Copies units of one layer's words and sums them. Without a target it only sums."""
        ...
