"""Relays sampled tokens from one launch to the next on the device, indexed by request row.

A launch stashes the tokens that it samples, each with the generation of its row; the next launch finds `-row` among its
input ids and resolves them here, so that the host need not see a token before it is used. Order comes from the forward
stream. Every gather checks that the row was written by its present owner; in debug mode, also that it was written since
its last gather. What it does not know: requests, lengths.
"""

import torch
from torch import Tensor

from protocol.errors import InternalError
from scheduler.row_pool import OWNER_SHIFT
from scheduler.schedule_batch import ScheduleBatch

POISON = torch.iinfo(torch.int64).min


class FutureMap:
    """`output_tokens_buf` is (rows,) int64, one entry per row of the request pool: the token, and above its OWNER_SHIFT
    bits the generation of the row. Row 0 is padding."""

    def __init__(self, num_rows: int, device: torch.device, debug: bool = False) -> None:
        self.output_tokens_buf = torch.full((num_rows,), POISON, dtype=torch.int64, device=device)
        self.output_tokens_buf[0] = 0
        self._debug = debug

    def stash(self, rows_N: Tensor, tokens: Tensor, owners_N: Tensor) -> None:
        """On the forward stream, after sampling: the next input token of each row. `tokens` is (N,) or (N, 1), any int.
        `owners_N` (N,) int64: see row_pool.owners_of."""
        if rows_N.numel() == 0:
            return
        self.output_tokens_buf[rows_N] = tokens.reshape(-1).to(torch.int64) + owners_N

    def set_input_ids_sentinel(self, batch: ScheduleBatch) -> None:
        """On the scheduler thread, after a launch: the next inputs are what that launch stashes."""
        batch.input_ids_B = -batch.rows_B

    def resolve_future(self, input_ids_T: Tensor, owners_B: Tensor) -> Tensor:
        """On the forward stream, at its entry: `input_ids_T` with every `-row` replaced by the row's token.

        Sentinels are among the last B ids, those of the decodes; `owners_B` (B,) is as in `stash`, for their rows.
        InternalError when a row was never written, or was written for another owner (on CUDA: a device-side assertion).
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


def _refusal(rows_N: Tensor, held_N: Tensor, owners_N: Tensor) -> InternalError:
    """Of rows that hold no token, or that of another owner."""
    rows, held = rows_N.tolist(), held_N.tolist()
    if unwritten := [row for row, value in zip(rows, held, strict=True) if value < 0]:
        return InternalError(f"a launch reads tokens of rows {unwritten}, which no launch has stashed")
    owner = int(owners_N[0]) >> OWNER_SHIFT
    return InternalError(f"row {rows[0]} of owner {owner} holds a token of owner {held[0] >> OWNER_SHIFT}")
