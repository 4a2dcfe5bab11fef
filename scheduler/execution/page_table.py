"""PageTable names the pages of each row's owner, on the device and on the host.

A launch copies what it needs of the page table when it is built, on the schedule stream. So a row may be written while
forwards are in flight.
"""

import numpy as np
import torch

from model.inputs import int64_column
from scheduler.plan import Grant

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class PageTable:
    """`req_to_page` is (rows, max_pages) int64 on the device, `req_to_page_cpu` the same on the host.

    Row 0 is padding and stays 0. `num_growths` counts pages added to rows in use: copies of older tables lack them.
    """

    def __init__(self, num_rows: int, max_pages: int, device: torch.device) -> None:
        self.req_to_page = torch.zeros((num_rows, max_pages), dtype=torch.int64, device=device)
        self.req_to_page_cpu = np.zeros((num_rows, max_pages), dtype=np.int64)
        self.num_growths = 0
        self._owner_numbers = [0] * num_rows

    def write(self, *grants: Grant) -> None:
        """Adds the pages of a plan's grants to their rows. Pages from index 0 on give a row to a new owner.

        All of them are one copy to the device and one scatter, on the schedule stream, for which forwards wait.
        """
        rows, columns = list[int](), list[int]()
        for grant in grants:
            if grant.start:
                assert self._owner_numbers[grant.row] == grant.owner_number, (
                    f"row {grant.row} grows for an earlier owner"
                )
                self.num_growths += 1
            self._owner_numbers[grant.row] = grant.owner_number
            end = grant.start + len(grant.pages)
            self.req_to_page_cpu[grant.row, grant.start : end] = grant.pages
            rows += [grant.row] * len(grant.pages)
            columns += range(grant.start, end)

        if rows:
            # Read back from the host's table: a cell that two grants name gets the later page both times.
            pages = self.req_to_page_cpu[rows, columns].tolist()
            rows_N, columns_N, pages_N = int64_column([rows, columns, pages], self.req_to_page.device)
            self.req_to_page[rows_N, columns_N] = pages_N
