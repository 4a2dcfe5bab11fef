"""Rotary position embedding: the frequencies of a RopeConfig, and the rotation of queries and keys.

Formulas: Su et al. 2021 (RoFormer); the llama3 rescaling as published with Llama 3.1.
Shapes: T tokens, N heads, D head_dim, F = D / 2 frequencies.
"""

import math

import torch
from torch import Tensor

from runtime.model_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each pair of dimensions: (F,) float32."""
    inv_freq_F = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if rope.kind == "linear":
        return inv_freq_F / rope.factor
    if rope.kind == "default":
        return inv_freq_F

    # llama3: stretch long wavelengths by `factor`, keep short ones, blend those between.
    wavelength_F = 2 * math.pi / inv_freq_F
    rotations_F = rope.original_max_position_embeddings / wavelength_F
    blend_F = (rotations_F - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend_F = blend_F.clamp(0.0, 1.0)
    return (1 - blend_F) * inv_freq_F / rope.factor + blend_F * inv_freq_F


def rotate(x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """`x_TND` rotated by its position. Computed in float32, returned in x's dtype. Pairs are (d, d + D/2)."""
    x_float = x_TND.float()
    half_turned = x_float.roll(x_float.shape[-1] // 2, -1)
    return torch.addcmul(x_float * cos_T1D, half_turned, sin_T1D).to(x_TND.dtype)
