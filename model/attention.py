"""What an attention backend is, and which one a device gets.

A backend plans once per forward (page lists, groups, masks) and attends once per layer with that plan. What it does
not know: projections, rope, or when KV is sent.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from model.attention_cpu import CpuAttention
from model.attention_varlen import VarlenAttention, find_kernel, trial
from model.cpu_kernels import CpuKernels
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


def choose_attention(
    name: str,
    device: torch.device,
    layout: KvLayout,
    num_heads: int,
    query_dtype: torch.dtype,
    max_context: int,
    kernels: CpuKernels | None = None,
) -> AttentionBackend:
    """The backend `name` (auto, cpu, triton or varlen) for a device. Only cpu takes queries wider than the pages, and
    `kernels`.

    auto is cpu on a CPU and triton on a GPU, which takes every page size and dtype and gives a request the same result
    whatever its neighbours. Raises ConfigError when the backend named cannot run there.
    """
    if name == "auto":
        name = "cpu" if device.type == "cpu" else "triton"
    if name == "cpu" and device.type == "cpu":
        return CpuAttention(query_dtype, kernels)
    if name == "triton" and device.type == "cuda":
        return _triton(device, layout, num_heads, max_context)
    if name == "varlen" and device.type == "cuda":
        return _varlen(device, layout, num_heads)
    possible = "auto or cpu" if device.type == "cpu" else "auto, triton or varlen"
    raise ConfigError(f"attention: got {name!r} on {device}, expected {possible}", param="attention")


def _triton(device: torch.device, layout: KvLayout, num_heads: int, max_context: int) -> AttentionBackend:
    try:
        from model.attention_triton import TritonAttention  # noqa: PLC0415 - an optional package, for GPUs
    except ImportError:
        raise ConfigError("attention on a GPU needs the package triton, which is not installed") from None
    whole_pages = layout.num_pages(max_context) * layout.page_size  # a graph's bound of lengths
    return TritonAttention(num_heads, layout.num_kv_heads, layout.head_dim, whole_pages, device)


def _varlen(device: torch.device, layout: KvLayout, num_heads: int) -> AttentionBackend:
    kernel = find_kernel()
    if kernel is None:
        raise ConfigError(
            f"attention: got 'varlen', but torch {torch.__version__} has no varlen_attn with block tables"
        )
    attention = VarlenAttention(kernel)
    trouble = trial(attention, layout, num_heads, device)
    if trouble is not None:
        raise ConfigError(f"attention: got 'varlen', but {trouble}; choose auto")
    return attention
