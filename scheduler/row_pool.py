"""Rows of requests and the page table, which names the pages of the request in each row.

A request keeps its row for its whole life on this worker. Row 0 is padding. `req_to_page` is (rows, max_pages) int64
on the device, `req_to_page_cpu` the same on the host. A row's table is written once, when the row is handed out. No
forward in flight can read it then: the retire queue ensures that.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from model.inputs import int64_column
from scheduler.req import Req

OWNER_SHIFT: Final = 32  # bits; a token is smaller than 2**32, and a row is handed out fewer than 2**31 times


class RowPool:
    """Rows [1, num_rows) of one worker. The row given back last is handed out first."""

    def __init__(self, num_rows: int, max_pages: int, device: torch.device) -> None:
        if num_rows < 2:
            raise ValueError(f"RowPool.num_rows: got {num_rows}, expected at least 2 (row 0 is padding)")
        self.num_rows = num_rows
        self.req_to_page = torch.zeros((num_rows, max_pages), dtype=torch.int64, device=device)
        self.req_to_page_cpu = np.zeros((num_rows, max_pages), dtype=np.int64)
        self._free = list(range(num_rows - 1, 0, -1))
        self._in_use = [False] * num_rows
        self._generation = [0] * num_rows

    @property
    def num_free(self) -> int:
        """Rows that can be handed out now."""
        return len(self._free)

    def allocate(self, pages: Sequence[int]) -> int:
        """A row whose table names `pages`. The caller has checked that one is free."""
        assert self._free, "the caller checks num_free"
        row = self._free.pop()
        assert row > 0 and not self._in_use[row]
        self._in_use[row] = True
        self._generation[row] += 1
        # Copied on the schedule stream, for which forwards wait before they read the table.
        self.req_to_page[row, : len(pages)] = torch.tensor(pages, dtype=torch.int64)
        self.req_to_page_cpu[row, : len(pages)] = pages
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


def owners_of(reqs: Sequence[Req], device: torch.device) -> Tensor:
    """(N,) int64: the generations of the requests' rows, shifted by OWNER_SHIFT to leave room for a token."""
    return int64_column([req.row_generation << OWNER_SHIFT for req in reqs], device)
