"""Copies KV between memories: few long runs one by one, many short ones as rows of one size.

    long    run after run, in pieces that fit a core's cache, so that the checksum finds a piece there
    short   rows -> staging buffer -> rows: each arrow is one call, whatever the number of runs

A window is the bytes of one layer from page 0 on.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from transfer.plan.reslice import Ints64, Moves, page_moves

LONG_BYTES: Final = 64 * 1024  # runs that are shorter on average are copied as rows
PIECE_BYTES: Final = 256 * 1024  # bytes that are copied or read at a time


class Runs:
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
        """Runs as (start, end)."""
        return list(zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True))

    @cached_property
    def are_long(self) -> bool:
        """Whether the runs are long enough to be taken one by one."""
        return self.num_bytes >= len(self.sizes) * LONG_BYTES

    @cached_property
    def are_one(self) -> bool:
        """Whether each run begins where the one before it ends."""
        return bool((self.starts[1:] == self.starts[:-1] + self.sizes[:-1]).all())

    @cached_property
    def unit(self) -> int:
        """The largest row size that divides the start and the size of every run."""
        return int(np.gcd.reduce(np.concatenate([self.starts, self.sizes])))

    def rows(self, unit: int) -> Ints64:
        """The rows of `unit` bytes in all runs."""
        return _rows_of(self.starts, self.sizes, unit)

    @cached_property
    def _own_rows(self) -> Ints64:
        return self.rows(self.unit)

    def views(self, window: memoryview) -> list[memoryview]:
        """Each run, without a copy."""
        return [window[start:end] for start, end in self.spans]

    def read(self, window: memoryview) -> Iterator[memoryview]:
        """The payload piece by piece. A piece is valid until the next is asked for."""
        if self.are_long:
            yield from self.views(window)
            return
        step = max(1, PIECE_BYTES // self.unit)
        staging = memoryview(bytearray(min(step * self.unit, self.num_bytes)))
        for start in range(0, len(self._own_rows), step):
            yield self._gather(window, start, step, staging)

    def gather(self, window: memoryview, into: memoryview) -> Iterator[memoryview]:
        """Fills `into` with the payload, piece by piece. Each piece is filled when it is asked for."""
        step = max(1, PIECE_BYTES // self.unit)
        for start in range(0, len(self._own_rows), step):
            yield self._gather(window, start, step, into[start * self.unit :])

    def _gather(self, window: memoryview, start: int, step: int, into: memoryview) -> memoryview:
        return _take(_as_rows(window, self.unit), self._own_rows[start : start + step], into)


class Copy:
    """Moves between two layers. The same for every layer of a group."""

    def __init__(self, moves: Moves, source_page_bytes: int, target_page_bytes: int) -> None:
        self.sources = Runs(moves.source_starts_M, moves.sizes_M, source_page_bytes)
        self.targets = Runs(moves.target_starts_M, moves.sizes_M, target_page_bytes)

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
        unit = int(np.gcd(self.sources.unit, self.targets.unit))
        return unit, self.sources.rows(unit), self.targets.rows(unit)

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


def whole_pages(pages: Sequence[int], page_bytes: int) -> Runs:
    """Pages in this order. Neighbours become one run."""
    moves = page_moves(pages, range(len(pages)), page_bytes)
    return Runs(moves.source_starts_M, moves.sizes_M, page_bytes)


def _rows_of(starts: Ints64, sizes: Ints64, unit: int) -> Ints64:
    """Every row of `unit` bytes that the runs touch."""
    if len(starts) == 1:
        return np.arange(int(starts[0]) // unit, -(-int(starts[0] + sizes[0]) // unit))
    first = starts // unit
    counts = -(-(starts + sizes) // unit) - first
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
