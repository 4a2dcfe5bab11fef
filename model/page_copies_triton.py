"""Copies scattered pages between two memories of one layout with one Triton kernel.

One memory may be pinned host memory, which a GPU reaches over the bus at the same address. The kernel has few programs,
so the model's kernels can run beside it. Shapes: L layers, P pages, W words of a page, N pages to copy.
"""

from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor

PROGRAMS: Final = 32  # enough to fill the bus
BLOCK: Final = 1024  # words at a time


def copy_pages(source_LPW: Tensor, target_LPW: Tensor, from_N: Tensor, to_N: Tensor) -> None:
    """Queues the copy of page from_N[i] to page to_N[i] in every layer, on the current stream.

    Both memories have contiguous last two dimensions.
    """
    num_layers, _, num_words = source_LPW.shape
    pieces = from_N.shape[0] * -(-num_words // BLOCK)
    if pieces:  # no kernel without programs
        _kernel[(min(PROGRAMS, num_layers * pieces),)](
            source_LPW,
            target_LPW,
            from_N,
            to_N,
            num_layers,
            from_N.shape[0],
            num_words,
            source_LPW.stride(0),
            target_LPW.stride(0),
            BLOCK=BLOCK,
        )


def _copy_pages(
    source_ptr: tl.tensor,
    target_ptr: tl.tensor,
    from_ptr: tl.tensor,
    to_ptr: tl.tensor,
    num_layers: tl.tensor,
    num_pages: tl.tensor,
    num_words: tl.tensor,
    source_stride: tl.tensor,
    target_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Program p copies pieces p, p + 32, ... of all pages of all layers."""
    pieces = tl.cdiv(num_words, BLOCK)
    for piece in range(tl.program_id(0).to(tl.int64), num_layers * num_pages * pieces, tl.num_programs(0)):
        row = piece // pieces
        layer, index = row // num_pages, row % num_pages
        word = (piece % pieces) * BLOCK + tl.arange(0, BLOCK)
        source = layer * source_stride + tl.load(from_ptr + index) * num_words + word  # int64: may exceed 2^31
        target = layer * target_stride + tl.load(to_ptr + index) * num_words + word
        is_inside = word < num_words
        tl.store(target_ptr + target, tl.load(source_ptr + source, mask=is_inside), mask=is_inside)


_kernel: Any = triton.jit(_copy_pages, do_not_specialize=["num_layers", "num_pages", "source_stride", "target_stride"])
