"""Copies scattered pages between two memories of one layout, by one Triton kernel, however many pages and layers.

One of the memories may be pinned host memory: a GPU reads and writes it over the bus, at the same address. Few programs
do the work, so that the model's kernels find room beside it. Shapes: L layers, P pages, W words of a page, N pages that
are copied.
"""

from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor

PROGRAMS: Final = 32  # what is under way in so many fills the bus
BLOCK: Final = 1024  # words at once


def copy_pages(source_LPW: Tensor, target_LPW: Tensor, pages_N: Tensor) -> None:
    """Queues the copy on the current stream. Both are contiguous in their last two dimensions, with equal strides."""
    num_layers, _, num_words = source_LPW.shape
    pieces = pages_N.shape[0] * -(-num_words // BLOCK)
    _kernel[(min(PROGRAMS, num_layers * pieces),)](
        source_LPW, target_LPW, pages_N, num_layers, pages_N.shape[0], num_words, source_LPW.stride(0), BLOCK=BLOCK
    )


def _copy_pages(
    source_ptr: tl.tensor,
    target_ptr: tl.tensor,
    pages_ptr: tl.tensor,
    num_layers: tl.tensor,
    num_pages: tl.tensor,
    num_words: tl.tensor,
    layer_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Program p takes pieces p, p + 32, ... of all pages of all layers."""
    pieces = tl.cdiv(num_words, BLOCK)
    for piece in range(tl.program_id(0).to(tl.int64), num_layers * num_pages * pieces, tl.num_programs(0)):
        row = piece // pieces
        page = tl.load(pages_ptr + row % num_pages)
        word = (piece % pieces) * BLOCK + tl.arange(0, BLOCK)
        offset = row // num_pages * layer_stride + page * num_words + word  # int64: it may exceed 2^31
        is_inside = word < num_words
        tl.store(target_ptr + offset, tl.load(source_ptr + offset, mask=is_inside), mask=is_inside)


_kernel: Any = triton.jit(_copy_pages, do_not_specialize=["num_layers", "num_pages", "layer_stride"])
