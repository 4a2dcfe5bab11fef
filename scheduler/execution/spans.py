"""The next positions of each row that decodes, where their KV lies, and decodes of them.

Shapes: B rows, X positions of each, P pages of the longest context, T = B times as many as are asked for.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from model.inputs import ChainInput, ModelInput
from protocol.kv_layout import pages_for
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.page_table import IntArray, PageTable


@dataclass(frozen=True)
class Spans:
    """X positions of each row, on the device. Those from the row's limit on are its last one, written to page 0. Those
    before its beginning are 0."""

    columns_4BX: Tensor  # positions, slots and lengths; the lengths that contexts would have without a limit
    table_BP: Tensor
    longest: int
    indices_B: Tensor
    after_cpu: IntArray  # (B, X), the last of the columns
    tables_TP: Tensor  # the table of all B * X positions
    indices_T: Tensor

    @staticmethod
    def of(running: ScheduleBatch, table: PageTable, page_size: int, starts: IntArray, width: int) -> "Spans":
        """The `width` positions from each of `starts` on."""
        columns = np.empty((4, len(starts), width), dtype=np.int64)
        positions, slots, lengths, after = columns
        limits, rows = np.maximum(running.members.limits_cpu, 1)[:, None], running.members.rows_cpu[:, None]

        np.add(starts[:, None], _upwards(width), out=after)
        np.minimum(after, limits, out=lengths)
        np.maximum(lengths, 1, out=lengths)
        np.subtract(lengths, 1, out=positions)
        pages, offsets = np.divmod(positions, page_size)
        np.multiply(table.req_to_page_cpu[rows, pages], page_size, out=slots)
        slots += offsets
        slots *= after <= limits

        longest = max(lengths[:, -1].tolist(), default=1)
        device, num_pages = running.rows_B.device, pages_for(longest, page_size)
        on_device = torch.from_numpy(columns).to(device, non_blocking=True)
        table_BP, of_tokens = running.page_table(table, num_pages), running.of_tokens(table, num_pages, width)
        return Spans(on_device, table_BP, longest, running.members.indices_B, after, *of_tokens)

    @property
    def positions_BX(self) -> Tensor:
        """The positions."""
        return self.columns_4BX[0]

    @property
    def slots_BX(self) -> Tensor:
        """Where their KV lies."""
        return self.columns_4BX[1]

    @property
    def after_T(self) -> Tensor:
        """The lengths of contexts with each position, without a limit; row by row."""
        return self.columns_4BX[3].flatten()

    def input(self, columns: slice | None = None) -> ModelInput:
        """Decodes of these columns, or of all, row by row. The ids are still to come."""
        chosen_4BX = self.columns_4BX if columns is None else self.columns_4BX[:, :, columns]
        _, num_rows, width = chosen_4BX.shape
        # a single column is a strided view, and kernels read one number after the other
        positions_T, slots_T, seq_lens_T, _ = chosen_4BX.flatten(1).contiguous().unbind(0)
        tables_TP, indices_T = self.tables_TP, self.indices_T
        if columns is not None:
            tables_TP = self.table_BP if width == 1 else self.table_BP.repeat_interleave(width, 0)
            indices_T = torch.arange(num_rows * width, device=positions_T.device)
        return ModelInput(
            input_ids_T=positions_T,
            positions_T=positions_T,
            slots_T=slots_T,
            page_table_BP=tables_TP,
            seq_lens_B=seq_lens_T,
            extend_lens=(),
            extend_seq_lens=(),
            num_decodes=num_rows * width,
            max_decode_seq_len=self.longest,
            logit_indices_L=indices_T,
        )

    def chain(self, num_steps: int) -> ChainInput:
        """The first columns, each a step."""
        steps_4SB = self.columns_4BX[:, :, :num_steps].transpose(1, 2).contiguous()
        positions_SB, slots_SB, seq_lens_SB, _ = steps_4SB.unbind(0)
        return ChainInput(positions_SB, slots_SB, seq_lens_SB, self.table_BP, self.longest, self.indices_B)


@cache
def _upwards(width: int) -> IntArray:
    """1, 2, ... of so many. Most launches have one width, so each is made once."""
    return np.arange(1, width + 1)
