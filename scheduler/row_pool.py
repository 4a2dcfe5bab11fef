"""Rows of requests: which are free, and how often each was handed out.

A request keeps its row for its whole life on this worker. Row 0 is padding. `page_table.py` holds the rows' pages.
"""

from collections.abc import Sequence


class RowPool:
    """Rows [1, num_rows) of one worker. The row given back last is handed out first."""

    def __init__(self, num_rows: int) -> None:
        if num_rows < 2:
            raise ValueError(f"RowPool.num_rows: got {num_rows}, expected at least 2 (row 0 is padding)")
        self.num_rows = num_rows
        self._free = list(range(num_rows - 1, 0, -1))
        self._in_use = [False] * num_rows
        self._generation = [0] * num_rows

    @property
    def num_free(self) -> int:
        """Rows that can be handed out now."""
        return len(self._free)

    def allocate(self) -> int:
        """A row. The caller has checked that one is free."""
        assert self._free, "the caller checks num_free"
        row = self._free.pop()
        assert row > 0 and not self._in_use[row]
        self._in_use[row] = True
        self._generation[row] += 1
        return row

    def reuse(self, rows: Sequence[int]) -> None:
        """Frees rows that nothing in flight can touch any more."""
        for row in rows:
            assert self._in_use[row], f"row {row} is given back twice"
            self._in_use[row] = False
            self._free.append(row)

    def generation(self, row: int) -> int:
        """How often the row was handed out."""
        return self._generation[row]
