"""Forwards that are put together by hand: decodes and chunks of prompts, by their rows of a page table.

Shapes: B requests or decode rows, P pages of a row, T tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.inputs import ModelInput


def decodes(ids_B: Tensor, positions_B: Tensor, tables_BP: Tensor, page_size: int) -> ModelInput:
    """A decode row of each token at its position. Rows may share pages. Kernels read the numbers side by side."""
    ids_B, positions_B = ids_B.contiguous(), positions_B.contiguous()
    return ModelInput(
        input_ids_T=ids_B,
        positions_T=positions_B,
        slots_T=slots(tables_BP, positions_B, page_size),
        page_table_BP=tables_BP,
        seq_lens_B=positions_B + 1,
        extend_lens=(),
        extend_seq_lens=(),
        num_decodes=len(ids_B),
        max_decode_seq_len=int(positions_B.max()) + 1,
        logit_indices_L=torch.arange(len(ids_B), device=ids_B.device),
    )


def chunks(ids_T: Tensor, lens: Sequence[int], tables_BP: Tensor, page_size: int, start: int = 0) -> ModelInput:
    """`lens` tokens of each prompt, behind the `start` that were computed before, with logits of the last ones."""
    ends = tuple(start + length for length in lens)
    lens_B = torch.tensor(lens, device=ids_T.device)
    positions_T = torch.cat([torch.arange(start, end, device=ids_T.device) for end in ends])
    return ModelInput(
        input_ids_T=ids_T,
        positions_T=positions_T,
        slots_T=slots(tables_BP.repeat_interleave(lens_B, dim=0), positions_T, page_size),
        page_table_BP=tables_BP,
        seq_lens_B=start + lens_B,
        extend_lens=tuple(lens),
        extend_seq_lens=ends,
        num_decodes=0,
        max_decode_seq_len=0,
        logit_indices_L=lens_B.cumsum(0) - 1,
    )


def slots(tables_TP: Tensor, positions_T: Tensor, page_size: int) -> Tensor:
    """The slot of each token, whose request's pages are its row of the table."""
    return tables_TP.gather(1, positions_T[:, None] // page_size)[:, 0] * page_size + positions_T % page_size
