"""What a transfer moves: its pages in frames, and the bytes that each frame copies from one page layout to another.

    pages   [0, num_pages)            logical, of one prompt, in order
    frame   [page_start, page_end)    of one layer; its payload is these pages in order
    shard   the heads that one rank holds of a layer, in pages of its own size
    move    bytes that lie in one piece on both sides

A transfer may start at a token that begins a page on both sides. Pages of frames are the sender's. Moves of one payload
never touch the same byte twice. Few long extents are copied one by one, many short ones as rows of one size:

    long    extent after extent, in pieces that fit a core's cache, so that the checksum finds a piece there
    short   rows -> staging buffer -> rows: each arrow is one call, however many extents there are

A window is the bytes of one layer from page 0 on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.kv_layout import KvLayout, LayerLayout, full_pages

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


def start_alignment(*page_sizes: int) -> int:
    """A transfer starts at a multiple of so many tokens: there, a page of each of these sizes begins."""
    return lcm(*page_sizes)


def start_fault(start: int, num_tokens: int, ours: int, theirs: int) -> str | None:
    """Why a transfer between pages of these sizes cannot start there, in one sentence; or None."""
    if start <= num_tokens and start % start_alignment(ours, theirs) == 0:
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


LONG_BYTES: Final = 64 * 1024  # extents that are shorter on average are copied as rows
PIECE_BYTES: Final = 256 * 1024  # bytes that are copied or read at a time


class Extents:
    """The byte ranges of a layer that a payload fills, in the payload's order. All layers of a group have the same."""

    def __init__(self, starts: Ints64, sizes: Ints64, page_bytes: int) -> None:
        self.starts = starts
        self.sizes = sizes
        self.num_bytes = int(sizes.sum())
        self._page_bytes = page_bytes

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def pages(self) -> Ints64:
        """Every page that is touched, in any order."""
        return _rows_of(self.starts, self.sizes, self._page_bytes)

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Extents as (start, end)."""
        return list(zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True))

    @cached_property
    def are_long(self) -> bool:
        """Whether the extents are long enough to be taken one by one."""
        return self.num_bytes >= len(self.sizes) * LONG_BYTES

    @cached_property
    def are_one(self) -> bool:
        """Whether each extent begins where the one before it ends."""
        return bool((self.starts[1:] == self.starts[:-1] + self.sizes[:-1]).all())

    @cached_property
    def row_bytes(self) -> int:
        """The largest row size that divides the start and the size of every extent."""
        return int(np.gcd.reduce(np.concatenate([self.starts, self.sizes])))

    def rows(self, row_bytes: int) -> Ints64:
        """The rows of `row_bytes` bytes in all extents."""
        return _rows_of(self.starts, self.sizes, row_bytes)

    @cached_property
    def _own_rows(self) -> Ints64:
        return self.rows(self.row_bytes)

    def views(self, window: memoryview) -> list[memoryview]:
        """Each extent, without a copy."""
        return [window[start:end] for start, end in self.spans]

    def read(self, window: memoryview) -> Iterator[memoryview]:
        """The payload piece by piece. A piece is valid until the next is asked for."""
        if self.are_long:
            yield from self.views(window)
            return
        step = max(1, PIECE_BYTES // self.row_bytes)
        staging = memoryview(bytearray(min(step * self.row_bytes, self.num_bytes)))
        for start in range(0, len(self._own_rows), step):
            yield self._gather(window, start, step, staging)

    def gather(self, window: memoryview, into: memoryview) -> Iterator[memoryview]:
        """Fills `into` with the payload, piece by piece. Each piece is filled when it is asked for."""
        step = max(1, PIECE_BYTES // self.row_bytes)
        for start in range(0, len(self._own_rows), step):
            yield self._gather(window, start, step, into[start * self.row_bytes :])

    def _gather(self, window: memoryview, start: int, step: int, into: memoryview) -> memoryview:
        return _take(_as_rows(window, self.row_bytes), self._own_rows[start : start + step], into)


class Copy:
    """Moves between two layers. The same for every layer of a group."""

    def __init__(self, moves: Moves, source_page_bytes: int, target_page_bytes: int) -> None:
        self.sources = Extents(moves.source_starts_M, moves.sizes_M, source_page_bytes)
        self.targets = Extents(moves.target_starts_M, moves.sizes_M, target_page_bytes)

    @cached_property
    def _pieces(self) -> list[tuple[int, int, int]]:
        return [
            (source + at, target + at, min(PIECE_BYTES, end - source - at))
            for (source, end), (target, _) in zip(self.sources.spans, self.targets.spans, strict=True)
            for at in range(0, end - source, PIECE_BYTES)
        ]

    @cached_property
    def _rows(self) -> tuple[int, Ints64, Ints64]:
        """(bytes of a row, rows of the source, rows of the target)."""
        row_bytes = int(np.gcd(self.sources.row_bytes, self.targets.row_bytes))
        return row_bytes, self.sources.rows(row_bytes), self.targets.rows(row_bytes)

    def run(self, source: memoryview, target: memoryview) -> None:
        """Copies everything."""
        if self.sources.are_long:
            for (start, end), (target_start, target_end) in zip(self.sources.spans, self.targets.spans, strict=True):
                target[target_start:target_end] = source[start:end]
            return

        if not self.sources.are_one:
            for _ in self.pieces(source, target):
                pass
            return

        row_bytes, source_rows, target_rows = self._rows
        first = int(source_rows[0])
        _as_rows(target, row_bytes)[target_rows] = _as_rows(source, row_bytes)[first : first + len(source_rows)]

    def pieces(self, source: memoryview, target: memoryview) -> Iterator[memoryview]:
        """Copies piece by piece, each when it is asked for. A piece is valid until the next is asked for."""
        if self.sources.are_long:
            for source_start, target_start, size in self._pieces:
                piece = source[source_start : source_start + size]
                target[target_start : target_start + size] = piece
                yield piece
            return

        row_bytes, source_rows, target_rows = self._rows
        from_rows, into_rows = _as_rows(source, row_bytes), _as_rows(target, row_bytes)
        step = max(1, PIECE_BYTES // row_bytes)
        staging = memoryview(bytearray(min(step, len(source_rows)) * row_bytes))

        for start in range(0, len(source_rows), step):
            piece = _take(from_rows, source_rows[start : start + step], staging)
            into_rows[target_rows[start : start + step]] = np.frombuffer(piece, into_rows.dtype)
            yield piece


def whole_pages(pages: Sequence[int], page_bytes: int) -> Extents:
    """Pages in this order. Neighbours become one run."""
    moves = page_moves(pages, range(len(pages)), page_bytes)
    return Extents(moves.source_starts_M, moves.sizes_M, page_bytes)


def _rows_of(starts: Ints64, sizes: Ints64, row_bytes: int) -> Ints64:
    """Every row of `row_bytes` bytes that the extents touch."""
    if len(starts) == 1:
        return np.arange(int(starts[0]) // row_bytes, -(-int(starts[0] + sizes[0]) // row_bytes))
    first = starts // row_bytes
    counts = -(-(starts + sizes) // row_bytes) - first
    ends = np.cumsum(counts)
    return np.repeat(first - ends + counts, counts) + np.arange(int(ends[-1]) if len(ends) else 0)


def _as_rows(window: memoryview, row_bytes: int) -> npt.NDArray[np.void]:
    return np.frombuffer(window[: len(window) // row_bytes * row_bytes], np.dtype((np.void, row_bytes)))


def _take(rows: npt.NDArray[np.void], numbers: Ints64, into: memoryview) -> memoryview:
    """Copies these rows, one after the other, to the beginning of `into`."""
    piece = into[: len(numbers) * rows.itemsize]
    # No row is out of range. With mode="raise", numpy would copy twice.
    np.take(rows, numbers, out=np.frombuffer(piece, rows.dtype), mode="clip")
    return piece
