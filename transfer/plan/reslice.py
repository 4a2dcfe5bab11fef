"""Which bytes of a sender's pages go where in a receiver's, when the two cut the same KV differently. Pure.

    shard   the heads that one rank holds of a layer, in pages of its own size
    part    the heads that one sender rank sends to one receiver rank
    move    a run of bytes that lies in one piece on both sides

Each byte of each receiver comes from exactly one sender. If there are more ranks than KV heads, neighbours hold copies
of one head, and the copies take turns in sending it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from protocol.kv_layout import ITEM_BYTES, KvLayout

Ints64 = npt.NDArray[np.int64]  # suffixes: P pieces of tokens that lie in one page on both sides, N of K and V, M moves


@dataclass(frozen=True)
class Part:
    """Heads `heads` of the model go from one rank to another."""

    sender_rank: int
    receiver_rank: int
    heads: range


@dataclass(frozen=True)
class Shard:
    """Tokens from `first_token` on, which begins a page, in `pages` (the owner's numbers) of one layer of one rank.

    The rank holds heads [first_head, first_head + layout.num_kv_heads) of the model.
    """

    layout: KvLayout
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
        starts_2P: Ints64 = row_2P * layout.token_bytes + (head - self.first_head) * head_bytes(layout)
        return starts_2P


@dataclass(frozen=True, slots=True)
class Move:
    """`num_bytes` from `source_start` on belong at `target_start`. Both count from page 0 of a layer."""

    source_start: int
    target_start: int
    num_bytes: int


class Moves(Sequence[Move]):
    """Many moves, as three columns."""

    def __init__(self, source_starts: Ints64, target_starts: Ints64, sizes: Ints64) -> None:
        self.source_starts = source_starts
        self.target_starts = target_starts
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Move: ...

    @overload
    def __getitem__(self, index: slice) -> "Moves": ...

    def __getitem__(self, index: int | slice) -> "Move | Moves":
        if isinstance(index, slice):
            return Moves(self.source_starts[index], self.target_starts[index], self.sizes[index])
        return Move(int(self.source_starts[index]), int(self.target_starts[index]), int(self.sizes[index]))


def head_bytes(layout: KvLayout) -> int:
    """Bytes of K (or of V) of one head of one token."""
    return layout.head_dim * ITEM_BYTES[layout.dtype]


def heads_of_rank(num_kv_heads: int, tp_size: int, rank: int) -> range:
    """The KV heads of a rank. With more ranks than heads, several neighbours hold the same head."""
    assert num_kv_heads % tp_size == 0 or tp_size % num_kv_heads == 0, (num_kv_heads, tp_size)
    assert 0 <= rank < tp_size, (rank, tp_size)
    count = max(1, num_kv_heads // tp_size)
    first = rank * num_kv_heads // tp_size
    return range(first, first + count)


def parts_of(num_kv_heads: int, sender_tp: int, receiver_tp: int, layer: int) -> list[Part]:
    """Which rank sends which heads to which, in `layer`. Copies of a head take turns by receiver and layer."""
    width = max(1, num_kv_heads // sender_tp)  # heads of one sender
    copies = max(1, sender_tp // num_kv_heads)  # senders that hold the same head
    takers = max(1, receiver_tp // num_kv_heads)  # receivers that want the same head

    parts: list[Part] = []
    for receiver in range(receiver_tp):
        wanted = heads_of_rank(num_kv_heads, receiver_tp, receiver)
        turn = (layer * takers + receiver % takers) % copies
        for group in range(wanted.start // width, -(-wanted.stop // width)):
            heads = range(max(wanted.start, group * width), min(wanted.stop, (group + 1) * width))
            parts.append(Part(group * copies + turn, receiver, heads))
    return parts


def moves_of(source: Shard, target: Shard, heads: range, tokens: range) -> Moves:
    """The moves of K and V of `heads` of `tokens` from one shard to another, in the longest runs that ascend with the
    sender's pages. They touch no byte of another token or head."""
    ours, theirs = source.layout, target.layout
    width = len(heads) * head_bytes(ours)
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
