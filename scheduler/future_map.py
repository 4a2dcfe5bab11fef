"""Relays sampled tokens from one launch to the next on the device, indexed by request row.

A launch stashes the tokens that it samples, each with the generation of its row. The next launch finds `-row` among its
input ids and resolves it here, so a token is used before the host sees it. The forward stream keeps the order. Every
gather checks that the row's present owner wrote it; in debug mode, also that it was written since its last gather.
"""

import torch
from torch import Tensor

from protocol.errors import InternalError
from scheduler.page_table import OWNER_SHIFT
from scheduler.schedule_batch import ScheduleBatch

POISON = torch.iinfo(torch.int64).min


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

        `tokens` is (N,) or (N, 1), any int type. `owners_N` is (N,) int64 from page_table.owners_of.
        """
        if rows_N.numel() == 0:
            return
        self.output_tokens_buf[rows_N] = tokens.reshape(-1).to(torch.int64) + owners_N

    def set_input_ids_sentinel(self, batch: ScheduleBatch) -> None:
        """Makes the tokens that the launch stashes the batch's next inputs. Runs on the scheduler thread."""
        batch.input_ids_B = batch.members.sentinels_B

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


def _refusal(rows_N: Tensor, held_N: Tensor, owners_N: Tensor) -> InternalError:
    """The error for rows that hold no token, or another owner's token."""
    rows, held = rows_N.tolist(), held_N.tolist()
    if unwritten := [row for row, value in zip(rows, held, strict=True) if value < 0]:
        return InternalError(f"a launch reads tokens of rows {unwritten}, which no launch has stashed")
    owner = int(owners_N[0]) >> OWNER_SHIFT
    return InternalError(f"row {rows[0]} of owner {owner} holds a token of owner {held[0] >> OWNER_SHIFT}")
