"""Two tables by row: PageTable names the pages of each row's owner, the FutureMap relays tokens between launches.

A launch copies what it needs of the page table when it is built, on the schedule stream. So a row may be written while
forwards are in flight.

A launch stashes the tokens that it samples, each with the generation of its row. The next launch finds `-row` among its
input ids and resolves it here, so a token is used before the host sees it. The forward stream keeps the order. Every
gather checks that the row's present owner wrote it; in debug mode, also that it was written since its last gather.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from model.inputs import int64_column
from protocol.errors import InternalError
from scheduler.plan import Draw, Grant

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
OWNER_SHIFT: Final = 32  # bits; a token is smaller than 2**32, and a row is handed out fewer than 2**31 times
POISON: Final = torch.iinfo(torch.int64).min


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


class FutureMap:
    """`output_tokens_buf` is (rows,) int64, one entry per row of the row pool. Row 0 is padding.

    The low OWNER_SHIFT bits hold the token, the others the generation of the row.
    """

    def __init__(self, num_rows: int, device: torch.device, debug: bool = False) -> None:
        self.output_tokens_buf = torch.full((num_rows,), POISON, dtype=torch.int64, device=device)
        self.output_tokens_buf[0] = 0
        self._debug = debug

    def stash(self, rows_N: Tensor, tokens: Tensor, owners_N: Tensor) -> None:
        """Stores the next input token of each row. Runs on the forward stream, after sampling.

        `tokens` is (N,) or (N, 1), any int type. `owners_N` is (N,) int64 from owners_of.
        """
        if rows_N.numel() == 0:
            return
        self.output_tokens_buf[rows_N] = tokens.reshape(-1).to(torch.int64) + owners_N

    def resolve_future(self, input_ids_T: Tensor, owners_B: Tensor) -> Tensor:
        """`input_ids_T` with every `-row` replaced by the row's token. Runs on the forward stream, before the model.

        Sentinels are among the last B ids, those of the decodes. `owners_B` (B,) is as in `stash`, for their rows.
        InternalError (on CUDA a device-side assertion) when a row was not written, or written for another owner.
        """
        num_decodes = owners_B.shape[0]
        if num_decodes == 0:
            return input_ids_T

        num_prompt = input_ids_T.shape[0] - num_decodes
        ids_B = input_ids_T[num_prompt:] if num_prompt else input_ids_T
        rows_B = (-ids_B).clamp(min=0)  # 0 where the host knew the token
        held_B = self.output_tokens_buf[rows_B]
        resolved_B = torch.where(ids_B >= 0, ids_B, held_B - owners_B)

        excess_B = resolved_B >> OWNER_SHIFT  # 0 if the token was stashed for this owner
        is_wrong = excess_B.any()
        if is_wrong.is_cuda:
            torch._assert_async(~is_wrong, "a launch reads a token that no launch has stashed for its request")
        elif is_wrong:
            wrong_B = excess_B != 0
            raise _refusal(rows_B[wrong_B], held_B[wrong_B], owners_B[wrong_B])

        if self._debug:
            self.output_tokens_buf[rows_B[rows_B > 0]] = POISON
        return torch.cat((input_ids_T[:num_prompt], resolved_B)) if num_prompt else resolved_B


def owners_of(draws: Sequence[Draw], device: torch.device) -> Tensor:
    """(N,) int64: the generations of the rows, shifted by OWNER_SHIFT to leave room for a token."""
    return int64_column([draw.generation << OWNER_SHIFT for draw in draws], device)


def _refusal(rows_N: Tensor, held_N: Tensor, owners_N: Tensor) -> InternalError:
    """The error for rows that hold no token, or another owner's token."""
    rows, held = rows_N.tolist(), held_N.tolist()
    if unwritten := [row for row, value in zip(rows, held, strict=True) if value < 0]:
        return InternalError(f"a launch reads tokens of rows {unwritten}, which no launch has stashed")
    owner = int(owners_N[0]) >> OWNER_SHIFT
    return InternalError(f"row {rows[0]} of owner {owner} holds a token of owner {held[0] >> OWNER_SHIFT}")
