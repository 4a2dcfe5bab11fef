"""The interface of an attention backend, and the choice of one for a device.

A backend plans once per forward and window (page lists, groups, masks) and attends once per layer with that plan.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from model.attention_cpu import CpuAttention
from model.attention_varlen import VarlenAttention, find_kernel, trial
from model.cpu_kernels import CpuKernels
from model.inputs import ModelInput
from model.scoring import PLAIN, Scoring
from protocol.errors import ConfigError
from protocol.kv_layout import LayerLayout


class AttentionBackend(Protocol):
    """Causal attention of T new tokens over paged KV. The tokens' own K and V are already written."""

    def plan(self, inp: ModelInput, layout: LayerLayout, window: int = 0) -> Any:
        """The values that `attend` needs, the same for every layer of this forward that has this window."""
        ...

    def longest_at_once(self, num_decodes: int) -> int | None:
        """Tokens of the longest context with which so many decodes take one pass over each layer; None: of any."""
        ...

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: Any, scoring: Scoring = PLAIN) -> Tensor:
        """(T, H, D) in q's dtype. `kv_layer` is (num_pages, 2, page_size, K, D), H a multiple of K. The plan is one for
        the window of `scoring`."""
        ...


def choose_attention(
    name: str,
    device: torch.device,
    layout: LayerLayout,
    num_heads: int,
    query_dtype: torch.dtype,
    max_context: int,
    kernels: CpuKernels | None = None,
) -> AttentionBackend:
    """The backend `name` (auto, cpu, triton or varlen) for a device. ConfigError if it cannot run there.

    auto is cpu on a CPU and triton on a GPU. triton takes every page size and dtype, and other requests of a batch do
    not change a request's result. Only cpu takes `kernels`, and queries wider than the pages. `max_context` is the
    longest context in tokens.
    """
    if name == "auto":
        name = "triton" if device.type == "cuda" else "cpu"
    if name == "cpu":
        if device.type != "cpu":
            raise _refused(name, f"but it computes on a CPU, and the model is on {device}")
        return CpuAttention(query_dtype, kernels)

    if name not in ("triton", "varlen"):
        raise _refused(name, "expected auto, triton, varlen or cpu")
    if device.type != "cuda":
        raise _refused(name, f"but it needs a CUDA device, and the model is on {device}")
    return (_triton if name == "triton" else _varlen)(device, layout, num_heads, max_context)


def _refused(name: str, reason: str) -> ConfigError:
    return ConfigError(f"--attention-backend: got {name!r}, {reason}", param="attention-backend")


def _triton(device: torch.device, layout: LayerLayout, num_heads: int, max_context: int) -> AttentionBackend:
    try:
        from model.attention_triton import TritonAttention  # noqa: PLC0415 - an optional package, for GPUs
    except ImportError:
        raise _refused("triton", "but the package triton is not installed") from None
    whole_pages = layout.num_pages(max_context) * layout.page_size  # the longest context that a graph allows
    return TritonAttention(num_heads, layout.num_kv_heads, layout.head_dim, whole_pages, device)


def _varlen(device: torch.device, layout: LayerLayout, num_heads: int, max_context: int) -> AttentionBackend:
    del max_context  # this kernel takes any length
    kernel = find_kernel()
    if kernel is None:
        raise _refused("varlen", f"but it needs torch 2.12 or newer, and this is torch {torch.__version__}")
    attention = VarlenAttention(kernel)
    trouble = trial(attention, layout, num_heads, device)
    if trouble is not None:
        raise _refused("varlen", f"but {trouble}")
    return attention
