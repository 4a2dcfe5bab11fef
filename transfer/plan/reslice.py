"""Which bytes of a sender's pages go where in a receiver's, when the two cut the same KV differently. Pure.

    shard   the heads that one rank holds of a layer, in pages of its own size
    move    a run of bytes that lies in one piece on both sides

Moves of one payload never touch the same byte twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.kv_layout import LayerLayout

Ints64 = npt.NDArray[np.int64]  # suffixes: P pieces of tokens that lie in one page on both sides, N of K and V, M moves


@dataclass(frozen=True)
class Shard:
    """Tokens from `first_token` on, which begins a page, in `pages` (the owner's numbers) of one layer of one rank.

    The rank holds heads [first_head, first_head + layout.num_kv_heads) of the model.
    """

    layout: LayerLayout
    pages: Sequence[int]
    first_head: int = 0
    first_token: int = 0

    def pages_of(self, tokens: range) -> Sequence[int]:
        """The pages of `tokens`, which must be whole pages."""
        size = self.layout.page_size
        return self.pages[(tokens.start - self.first_token) // size : (tokens.stop - self.first_token) // size]

    def starts_of(self, tokens_P: Ints64, head: int) -> Ints64:
        """Where K (row 0) and V (row 1) of a head of each token begin, in bytes from page 0. Tokens ascend."""
        layout = self.layout
        index_P, slot_P = np.divmod(tokens_P - self.first_token, layout.page_size)
        first, end = (int(index_P[0]), int(index_P[-1]) + 1) if len(index_P) else (0, 0)
        pages_P = np.array(self.pages[first:end], np.int64)[index_P - first]
        row_2P = (pages_P * 2 + np.array([[0], [1]])) * layout.page_size + slot_P
        starts_2P: Ints64 = row_2P * layout.token_bytes + (head - self.first_head) * layout.head_bytes
        return starts_2P


@dataclass(frozen=True, eq=False)
class Moves:
    """Many moves, as three columns: bytes from `source_starts_M` on belong at `target_starts_M`. Both count from page 0
    of a layer."""

    source_starts_M: Ints64
    target_starts_M: Ints64
    sizes_M: Ints64


def moves_of(source: Shard, target: Shard, heads: range, tokens: range) -> Moves:
    """The moves of K and V of `heads` of `tokens` from one shard to another, in the longest runs that ascend with the
    sender's pages. They touch no byte of another token or head."""
    ours, theirs = source.layout, target.layout
    width = len(heads) * ours.head_bytes
    whole_rows = width == ours.token_bytes == theirs.token_bytes

    if (
        whole_rows
        and ours.page_size == theirs.page_size
        and tokens.start % ours.page_size == 0 == len(tokens) % ours.page_size
    ):
        return page_moves(source.pages_of(tokens), target.pages_of(tokens), ours.page_bytes)

    first_P = _cut(tokens, ours.page_size, theirs.page_size) if whole_rows else np.arange(tokens.start, tokens.stop)
    size_P = np.diff(first_P, append=tokens.stop) * width
    columns = [source.starts_of(first_P, heads.start), target.starts_of(first_P, heads.start), np.stack([size_P] * 2)]
    if whole_rows and theirs.page_size % ours.page_size == 0:  # of each of the source's pages K, then V
        return joined(*(column.ravel(order="F") for column in columns))

    page_P = first_P // ours.page_size
    order_N = np.argsort(np.concatenate([page_P * 2, page_P * 2 + 1]), kind="stable")
    return joined(*(column.ravel()[order_N] for column in columns))


def page_moves(sources: Sequence[int], targets: Sequence[int], page_bytes: int) -> Moves:
    """The moves of whole pages, one after the other, between layers with pages of one size."""
    if sources and _are_neighbours(sources) and _are_neighbours(targets):
        starts = sources[0] * page_bytes, targets[0] * page_bytes
        return Moves(*(np.array([value], np.int64) for value in (*starts, len(sources) * page_bytes)))
    columns = np.array([sources, targets], np.int64) * page_bytes
    return joined(columns[0], columns[1], np.full(len(sources), page_bytes, np.int64))


def _are_neighbours(pages: Sequence[int]) -> bool:
    return tuple(pages) == tuple(range(pages[0], pages[0] + len(pages)))


def _cut(tokens: range, one: int, two: int) -> Ints64:
    """Where the pieces of `tokens` begin that lie in one page on both sides."""
    if not tokens:
        return np.empty(0, np.int64)
    small, large = sorted((one, two))
    pages = np.arange(tokens.start // small * small, tokens.stop, small)
    if large % small:
        pages = np.union1d(pages, np.arange(tokens.start // large * large, tokens.stop, large))
        pages = pages[np.searchsorted(pages, tokens.start, side="right") - 1 :]
    pages[0] = tokens.start
    return pages


def joined(source_N: Ints64, target_N: Ints64, size_N: Ints64) -> Moves:
    """Merges neighbours that lie in one piece on both sides into one move."""
    joins = (source_N[1:] == source_N[:-1] + size_N[:-1]) & (target_N[1:] == target_N[:-1] + size_N[:-1])
    first_M = np.flatnonzero(np.concatenate([[True][: len(size_N)], ~joins]))
    sizes_M = np.add.reduceat(size_N, first_M) if len(first_M) else size_N
    return Moves(source_N[first_M], target_N[first_M], sizes_M)
