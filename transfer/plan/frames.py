"""Which pages make up a transfer, when they may leave, and in which frames. Pure.

    pages   [0, num_pages)            logical, of one prompt, in order
    frame   [page_start, page_end)    of one layer; its payload is these pages in order

A transfer may start at a token that begins a page on both sides. Pages are the sender's. reslice.py tells where their
bytes land.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from protocol.kv_layout import KvLayout, full_pages

FRAME_BYTES = 2 * 1024 * 1024  # payload of one merged frame; a larger page is a frame of its own
IN_PLACE_FRAME_BYTES = 4 * 1024 * 1024  # payload of one frame that is written in place, on one host
DEVICE_FRAME_BYTES = 128 * 1024 * 1024  # payload of one frame between devices, where starting a frame is expensive


@dataclass(frozen=True)
class KvFrame:
    """Pages [page_start, page_start + num_pages) of `layer`; `num_tokens` of their slots are valid, from the first."""

    layer: int
    page_start: int
    num_pages: int
    num_tokens: int


def start_of(wished: int, *page_sizes: int) -> int:
    """The last token up to `wished` that begins a page of each of these sizes."""
    return wished - wished % lcm(*page_sizes)


def start_fault(start: int, num_tokens: int, ours: int, theirs: int) -> str | None:
    """Why a transfer between pages of these sizes cannot start there, in one sentence; or None."""
    if start <= num_tokens and start == start_of(start, ours, theirs):
        return None
    begins = f"begins a page of {ours} and one of {theirs} tokens"
    return f"start: got {start}, expected a token that {begins}, and at most {num_tokens}"


def final_pages(layout: KvLayout, num_final: int, num_tokens: int) -> int:
    """Pages [0, result) may leave once tokens [0, num_final) are final. A partial page leaves with the last token."""
    if num_final >= num_tokens:
        return layout.num_pages(num_tokens)
    return full_pages(num_final, layout.page_size)


def frames_of(
    layout: KvLayout, layer: int, page_start: int, page_end: int, num_tokens: int, max_bytes: int
) -> Iterator[KvFrame]:
    """Pages [page_start, page_end) of `layer` in frames of at most `max_bytes`, but of at least one page each."""
    step = max(1, full_pages(max_bytes, layout.layer(layer).page_bytes))
    for start in range(page_start, page_end, step):
        count = min(step, page_end - start)
        yield KvFrame(layer, start, count, layout.tokens_in(num_tokens, start, count))
