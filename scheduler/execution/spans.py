"""The next positions of each row that decodes, where their KV lies, and decodes of them.

Shapes: B rows, X positions of each, P pages of the longest context, T = B times as many as are asked for.
"""

from dataclasses import dataclass

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

    columns_3BX: Tensor  # positions, slots and lengths
    table_BP: Tensor
    longest: int
    indices_B: Tensor

    @staticmethod
    def of(running: ScheduleBatch, table: PageTable, page_size: int, starts: IntArray, width: int) -> "Spans":
        """The `width` positions from each of `starts` on."""
        limits = np.maximum(running.members.limits_cpu, 1)[:, None]
        wanted = starts[:, None] + np.arange(width)
        positions = np.clip(wanted, 0, limits - 1)
        pages, offsets = np.divmod(positions, page_size)
        rows = running.members.rows_cpu[:, None]
        slots = np.where(wanted < limits, table.req_to_page_cpu[rows, pages] * page_size + offsets, 0)
        longest = int(positions.max(initial=0)) + 1
        device = running.rows_B.device
        on_device = torch.from_numpy(np.stack((positions, slots, positions + 1))).to(device, non_blocking=True)
        table_BP = running.page_table(table, pages_for(longest, page_size))
        return Spans(on_device, table_BP, longest, running.members.indices_B)

    @property
    def positions_BX(self) -> Tensor:
        """The positions."""
        return self.columns_3BX[0]

    @property
    def slots_BX(self) -> Tensor:
        """Where their KV lies."""
        return self.columns_3BX[1]

    def input(self, columns: slice = slice(None)) -> ModelInput:
        """Decodes of these columns, row by row. The ids are still to come."""
        chosen_3BX = self.columns_3BX[:, :, columns]
        _, num_rows, width = chosen_3BX.shape
        # a single column is a strided view, and kernels read one number after the other
        positions_T, slots_T, seq_lens_T = chosen_3BX.flatten(1).contiguous().unbind(0)
        return ModelInput(
            input_ids_T=positions_T,
            positions_T=positions_T,
            slots_T=slots_T,
            page_table_BP=self.table_BP if width == 1 else self.table_BP.repeat_interleave(width, 0),
            seq_lens_B=seq_lens_T,
            extend_lens=(),
            extend_seq_lens=(),
            num_decodes=num_rows * width,
            max_decode_seq_len=self.longest,
            logit_indices_L=torch.arange(num_rows * width, device=positions_T.device),
        )

    def chain(self, num_steps: int) -> ChainInput:
        """The first columns, each a step."""
        positions_SB, slots_SB, seq_lens_SB = self.columns_3BX[:, :, :num_steps].transpose(1, 2).contiguous().unbind(0)
        return ChainInput(positions_SB, slots_SB, seq_lens_SB, self.table_BP, self.longest, self.indices_B)
