"""What an attention backend is, and which one a device gets.

A backend plans once per forward (page lists, groups, masks) and attends once per layer with that plan. What it does
not know: projections, rope, or when KV is sent.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from model.attention_cpu import CpuAttention
from model.inputs import ModelInput
from protocol.errors import ConfigError
from protocol.kv_layout import KvLayout


class AttentionBackend(Protocol):
    """Causal attention of T new tokens over paged KV in which they are already written."""

    def plan(self, inp: ModelInput, layout: KvLayout) -> Any:
        """Whatever the backend needs for every layer of this forward."""
        ...

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: Any) -> Tensor:
        """(T, H, D) in q's dtype. `kv_layer` is (num_pages, 2, page_size, K, D), H a multiple of K."""
        ...


def choose_attention(name: str, device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    """The backend `name` (auto, cpu, triton, varlen) for a device. Raises ConfigError when it cannot run there."""
    if name == "auto":
        name = "cpu" if device.type == "cpu" else "triton"
    if name == "cpu":
        return CpuAttention()
    raise ConfigError(f"attention backend: got {name!r} for device {device}, expected auto or cpu")
