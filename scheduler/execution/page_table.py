"""PageTable names the pages of each row's owner, on the device and on the host.

A launch copies what it needs of the page table when it is built, on the schedule stream. So a row may be written while
forwards are in flight.
"""

import numpy as np
import torch

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
        self._generations = [0] * num_rows

    def write(self, grant: Grant) -> None:
        """Adds pages to a row. Those from index 0 on give it to a new owner."""
        if grant.start:
            assert self._generations[grant.row] == grant.generation, f"row {grant.row} grows for an earlier owner"
            self.num_growths += 1
        self._generations[grant.row] = grant.generation
        where = slice(grant.start, grant.start + len(grant.pages))
        self.req_to_page_cpu[grant.row, where] = grant.pages
        # Copied on the schedule stream, for which forwards wait.
        self.req_to_page[grant.row, where] = torch.from_numpy(self.req_to_page_cpu[grant.row, where])
