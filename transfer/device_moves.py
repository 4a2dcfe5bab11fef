"""Moves of KV within device memory, in units that one kernel copies, and the checksum of what they move.

    moves -> units: pieces of one size, the largest that every move begins and ends with -> a table for the kernel

The device checksum: the words of what is moved, w[0], w[1], ... in the order of the prompt, give the sum of
scramble(w[i] ^ i * STEP), modulo 2^64. For each i this is a bijection of w[i]: xor with a constant, odd multipliers,
xor with the word's own right shift. So one word that changes changes its addend, and with it the sum, always. Any other
difference, such as words that changed places, is missed with a chance of about 2^-64, as far as scramble() behaves like
a bijection drawn at random; it is no defence against intent. Addends may be added in any order, which is why a device
can do it. What it does not know: CUDA, streams, frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.kv_layout import KvLayout
from transfer.reslice import Move, head_bytes

WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16}  # by bytes
WRAP: Final = (1 << 64) - 1
STEP: Final = 0x1E3779B97F4A7C15  # odd, and below 2^63, so that they are the same as signed and unsigned integers
FIRST: Final = 0x3F58476D1CE4E5B9
SECOND: Final = 0x14D049BB133111EB

Ints64 = npt.NDArray[np.int64]  # suffixes: M moves, U units, N words


def word_bytes(layout: KvLayout) -> int:
    """Bytes of the words that are summed: the same for both ends, whatever their page sizes."""
    return gcd(head_bytes(layout), max(WORDS))


def total_of(words_N: Tensor) -> int:
    """The device checksum of words in the order of the prompt. What a kernel computes must equal this."""
    position_N = torch.arange(words_N.numel(), dtype=torch.int64, device=words_N.device)
    x_N = words_N.to(torch.int64) ^ (position_N * STEP)  # int64 wraps on overflow, on every device
    x_N = x_N * FIRST
    x_N = (x_N ^ ((x_N >> 32) & 0xFFFFFFFF)) * SECOND  # the mask makes it a shift that brings in zeros
    x_N = x_N ^ ((x_N >> 29) & 0x7FFFFFFFF)
    return int(x_N.sum()) & WRAP


@dataclass(frozen=True)
class Units:
    """Units `sources_U[i]` of `num_words` words each belong at `targets_U[i]`, both counted from the beginning of a
    layer, in the order of the prompt."""

    num_words: int
    sources_U: Ints64
    targets_U: Ints64


def units_to_write(moves: Sequence[Move], source: KvLayout, target: KvLayout) -> Units:
    """The moves of a frame, from pages of one layout to pages of another, cut into pieces of one size."""
    starts_2M, size_M = _columns(moves)
    return _cut(starts_2M, size_M, gcd(source.page_bytes, target.page_bytes), word_bytes(source))


def units_to_read(moves: Sequence[Move], target: KvLayout) -> Units:
    """What moves have written, in the same order."""
    starts_2M, size_M = _columns(moves)
    return _cut(starts_2M[[1, 1]], size_M, target.page_bytes, word_bytes(target))


def _columns(moves: Sequence[Move]) -> tuple[Ints64, Ints64]:
    rows = [(move.source_start, move.target_start, move.num_bytes) for move in moves]
    columns_3M = np.array(rows, np.int64).reshape(-1, 3).T
    return columns_3M[:2], columns_3M[2]


def _cut(starts_2M: Ints64, size_M: Ints64, page_bytes: int, num_word_bytes: int) -> Units:
    unit = int(np.gcd.reduce([page_bytes, *np.gcd.reduce(starts_2M, 0), *size_M]))
    count_M = size_M // unit
    within_U = np.arange(count_M.sum()) - np.repeat(np.cumsum(count_M) - count_M, count_M)
    sources_U, targets_U = (np.repeat(start_M // unit, count_M) + within_U for start_M in starts_2M)
    return Units(unit // num_word_bytes, sources_U, targets_U)


class Moving(Protocol):
    """Work that was given to a device, and cannot be called back."""

    @property
    def done(self) -> bool:
        """Whether it has completed: nothing of it reads or writes any more, and what it wrote is there for all."""
        ...

    def wait(self) -> None:
        """Blocks until `done`."""
        ...

    @property
    def total(self) -> int:
        """The device checksum of what was moved or read, once `done`."""
        ...


class Copies(Protocol):
    """Where device work runs; all of it in the order in which it was given, beside what the model computes."""

    def begin(self, source_W: Tensor, target_W: Tensor | None, units: Units) -> Moving:
        """Copies units of one layer's words, and sums them; without a target it only reads."""
        ...


class HostCopies:
    """Copies on a CPU, done at once: for tests, and the measure of what a device must do."""

    def begin(self, source_W: Tensor, target_W: Tensor | None, units: Units) -> "Moved":
        """See Copies."""
        words_UW = source_W.view(-1, units.num_words)[torch.from_numpy(units.sources_U)]
        if target_W is not None:
            target_W.view(-1, units.num_words)[torch.from_numpy(units.targets_U)] = words_UW
        return Moved(total_of(words_UW.flatten()))


@dataclass(frozen=True)
class Moved:
    """Work that has completed."""

    total: int
    done: bool = True

    def wait(self) -> None:
        """There is nothing to wait for."""
