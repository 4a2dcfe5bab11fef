"""The page table: the pages of the request in each row, on the device and on the host; and the owners of rows.

A launch copies what it needs of the table when it is built, on the schedule stream. So a row may be written while
forwards are in flight.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from model.inputs import int64_column
from scheduler.req import Req

OWNER_SHIFT: Final = 32  # bits; a token is smaller than 2**32, and a row is handed out fewer than 2**31 times


class PageTable:
    """`req_to_page` is (rows, max_pages) int64 on the device, `req_to_page_cpu` the same on the host.

    Row 0 is padding and stays 0. `num_growths` counts pages added to rows in use: copies of older tables lack them.
    """

    def __init__(self, num_rows: int, max_pages: int, device: torch.device) -> None:
        self.req_to_page = torch.zeros((num_rows, max_pages), dtype=torch.int64, device=device)
        self.req_to_page_cpu = np.zeros((num_rows, max_pages), dtype=np.int64)
        self.num_growths = 0

    def write(self, row: int, pages: Sequence[int], start: int = 0) -> None:
        """Sets the pages [start, start + len(pages)) of a row's context."""
        where = slice(start, start + len(pages))
        # Copied on the schedule stream, for which forwards wait.
        self.req_to_page[row, where] = torch.tensor(pages, dtype=torch.int64)
        self.req_to_page_cpu[row, where] = pages

    def grow(self, row: int, pages: Sequence[int], start: int) -> None:
        """Adds pages to a row in use, from index `start` on."""
        self.write(row, pages, start)
        self.num_growths += 1


def owners_of(reqs: Sequence[Req], device: torch.device) -> Tensor:
    """(N,) int64: the generations of the requests' rows, shifted by OWNER_SHIFT to leave room for a token."""
    return int64_column([req.held.generation << OWNER_SHIFT for req in reqs], device)
