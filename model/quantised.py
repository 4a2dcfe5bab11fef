"""Weights that a checkpoint holds in fewer bits, as they are read: fp8 with a scale for each block, and MXFP4.

    fp8     float8 e4m3, (O, I); scales (ceil(O / block), ceil(I / block)): weight times scale, in float32, rounded once
    mxfp4   4 bits a number, two in a byte, the low one first; 32 numbers share a scale, a power of two with a bias of
            127 (Open Compute Project 2023, "OCP Microscaling Formats")

Shapes: O outputs, I inputs, R and C blocks of outputs and of inputs, G groups of 32 inputs.
"""

from typing import Final

import torch
from torch import Tensor

from model.rows import AT_ONCE
from runtime.model_config import MXFP4_GROUP

GROUP: Final = MXFP4_GROUP
EXPONENT_BIAS: Final = 127
MXFP4_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def from_fp8(
    weight_OI: Tensor, scales_RC: Tensor, block: tuple[int, int], first: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """The numbers of a weight, or of a part of one that begins at row and column `first`; the scales are all of it."""
    num_rows, num_columns = weight_OI.shape
    out_OI = torch.empty((num_rows, num_columns), dtype=dtype)
    columns_I = (first[1] + torch.arange(num_columns)) // block[1]
    step = max(1, AT_ONCE // max(1, num_columns))
    for start in range(0, num_rows, step):
        rows = slice(start, start + step)
        rows_O = (first[0] + torch.arange(num_rows)[rows]) // block[0]
        scales_OI = scales_RC.float().index_select(0, rows_O).index_select(1, columns_I)
        out_OI[rows] = (weight_OI[rows].float() * scales_OI).to(dtype)
    return out_OI


def from_mxfp4(blocks_OGB: Tensor, scales_OG: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers (O, I) of groups of 16 bytes. bfloat16 and float32 hold each exactly."""
    values = torch.tensor(MXFP4_VALUES)
    num_rows = blocks_OGB.shape[0]
    out_OI = torch.empty((num_rows, scales_OG.shape[1] * GROUP), dtype=dtype)
    step = max(1, AT_ONCE // max(1, out_OI.shape[1]))
    for start in range(0, num_rows, step):
        rows = slice(start, start + step)
        low, high = blocks_OGB[rows] & 15, blocks_OGB[rows] >> 4
        nibbles_OGN = torch.stack((low, high), dim=-1).flatten(2).int()
        exponents_OG1 = scales_OG[rows].int()[..., None] - EXPONENT_BIAS
        out_OI[rows] = torch.ldexp(values[nibbles_OGN], exponents_OG1).flatten(1).to(dtype)
    return out_OI
