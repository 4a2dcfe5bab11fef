"""Moves and their checksum on a GPU as one Triton kernel, which reads and writes each byte once.

A program takes a piece of one tile of one layer, writes it to its place and adds its share to one of the layer's sums,
so that programs do not wait for each other. Their total equals the device checksum of device_pools.py.
Shapes: L layers, W words of a layer, U tiles, S sums of a layer, B words of a piece.
"""

from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor

from transfer.in_place.device_pools import FIRST, SECOND, STEP

NUM_SUMS: Final = 64
BLOCKS: Final = (1024, 128)  # words of a piece; few sizes, because each is compiled


def launch(source_LW: Tensor, target_LW: Tensor | None, table_2U: Tensor, num_words: int, sums_LS: Tensor) -> None:
    """Queues the kernel on the current stream of the current device. `table_2U`: source tiles, then target tiles.
    Each layer is a whole number of tiles. `sums_LS` must be zeros."""
    block = BLOCKS[num_words < BLOCKS[0]]
    pieces = -(-num_words // block)
    written_LW = source_LW if target_LW is None else target_LW
    _kernel[(table_2U.shape[1] * pieces, source_LW.shape[0])](
        source_LW,
        written_LW,
        table_2U,
        sums_LS,
        source_LW.shape[1] // num_words,
        written_LW.shape[1] // num_words,
        table_2U.shape[1],
        num_words,
        pieces,
        WRITES=target_LW is not None,
        SUMS=NUM_SUMS,
        BLOCK=block,
        STEP=STEP,
        FIRST=FIRST,
        SECOND=SECOND,
    )


def _move(
    source_ptr: tl.tensor,
    target_ptr: tl.tensor,
    table_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    source_tiles: tl.tensor,  # of a layer
    target_tiles: tl.tensor,
    num_tiles: tl.tensor,
    num_words: tl.tensor,
    pieces: tl.tensor,
    WRITES: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
) -> None:
    program, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tile = program // pieces
    word_B = (program % pieces) * BLOCK + tl.arange(0, BLOCK)
    inside_B = word_B < num_words

    source = (layer * source_tiles + tl.load(table_ptr + tile)) * num_words
    value_B = tl.load(source_ptr + source + word_B, mask=inside_B, other=0)
    if WRITES:
        target = (layer * target_tiles + tl.load(table_ptr + num_tiles + tile)) * num_words
        tl.store(target_ptr + target + word_B, value_B, mask=inside_B)

    position_B = tile.to(tl.int64) * num_words + word_B
    x_B = value_B.to(tl.int64) ^ (position_B * STEP)
    x_B = x_B * FIRST
    x_B = (x_B ^ ((x_B >> 32) & 0xFFFFFFFF)) * SECOND
    x_B = x_B ^ ((x_B >> 29) & 0x7FFFFFFFF)

    share = tl.sum(tl.where(inside_B, x_B, tl.zeros_like(x_B)), axis=0)
    tl.atomic_add(sums_ptr + layer * SUMS + program % SUMS, share, sem="relaxed")


_kernel: Any = triton.jit(_move, do_not_specialize=["source_tiles", "target_tiles", "num_tiles", "pieces"])
