"""Relays sampled tokens from one launch to the next on the device, indexed by request row.

A launch stashes the tokens that it samples; the next launch finds `-row` among its input ids and resolves them here, so
that the host need not see a token before it is used. Order comes from the forward stream. In debug mode every gather
checks that the row was written since its last gather, by its present owner. What it does not know: requests, lengths.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from protocol.errors import InternalError
from scheduler.schedule_batch import ScheduleBatch

POISON = torch.iinfo(torch.int64).min


class FutureMap:
    """`output_tokens_buf` is (rows,) int64, one entry per row of the request pool; row 0 is padding."""

    def __init__(self, num_rows: int, device: torch.device, debug: bool = False) -> None:
        self.output_tokens_buf = torch.full((num_rows,), POISON, dtype=torch.int64, device=device)
        self.output_tokens_buf[0] = 0
        self._debug = debug
        self._writer_generation = [0] * num_rows

    def stash(self, rows_N: Tensor, tokens: Tensor, generations: Sequence[int]) -> None:
        """On the forward stream, after sampling: the next input token of each row. `tokens` is (N,) or (N, 1), any int.

        `generations` are the rows' owners, for the debug check.
        """
        if rows_N.numel() == 0:
            return
        self.output_tokens_buf[rows_N] = tokens.reshape(-1).to(torch.int64)
        if self._debug:
            for row, generation in zip(rows_N.tolist(), generations, strict=True):
                self._writer_generation[row] = generation

    def set_input_ids_sentinel(self, batch: ScheduleBatch) -> None:
        """On the scheduler thread, after a launch: the next inputs are what that launch stashes."""
        batch.input_ids_B = -batch.rows_B

    def resolve_future(self, input_ids_T: Tensor, generations: Sequence[int]) -> Tensor:
        """On the forward stream, at its entry: `input_ids_T` with every `-row` replaced by the row's token.

        `generations` are the owners of the decodes' rows, which come last, for the debug check. InternalError when a
        row was never written (on CUDA: a device-side assertion).
        """
        if input_ids_T.numel() == 0:
            return input_ids_T
        is_sentinel_T = input_ids_T < 0
        rows_T = torch.where(is_sentinel_T, -input_ids_T, 0)
        resolved_T = torch.where(is_sentinel_T, self.output_tokens_buf[rows_T], input_ids_T)
        is_valid = (resolved_T >= 0).all()
        if resolved_T.is_cuda:
            torch._assert_async(is_valid, "a launch reads a token that no launch has stashed")
        elif not is_valid:
            rows = rows_T[resolved_T < 0].tolist()
            raise InternalError(f"a launch reads tokens of rows {rows}, which no launch has stashed")
        if self._debug:
            self._check_and_poison(rows_T[len(rows_T) - len(generations) :].tolist(), generations)
        return resolved_T

    def _check_and_poison(self, rows: Sequence[int], generations: Sequence[int]) -> None:
        for row, generation in zip(rows, generations, strict=True):
            written = self._writer_generation[row]
            if row > 0 and written != generation:
                raise InternalError(f"row {row} of owner {generation} holds a token of owner {written}")
        self.output_tokens_buf[[row for row in rows if row > 0]] = POISON
