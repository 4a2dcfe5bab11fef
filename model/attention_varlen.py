"""Paged attention on a GPU by torch's own variable-length kernel, which reads block tables from torch 2.12 on.

The kernel is used if its signature fits and one small call agrees with the CPU backend. It has no tree mask.
Shapes: T tokens, B requests, H query heads, K kv heads, D head_dim.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from model.attention_cpu import CpuAttention
from model.inputs import ModelInput
from model.paged_kv import TORCH_DTYPES
from model.scoring import PLAIN, Scoring
from protocol.errors import ConfigError
from protocol.kv_layout import LayerLayout

NEEDED: Final = frozenset({"block_table", "seqused_k", "enable_gqa", "window_size"})
_TRIAL_TOLERANCE: Final = 0.05  # of values of unit size, in half precision


def find_kernel() -> Callable[..., Any] | None:
    """torch's varlen_attn if it takes block tables, else None."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - slow to import, and seldom asked for

    kernel: Callable[..., Any] = varlen_attn
    return kernel if reads_block_tables(kernel) else None


def reads_block_tables(kernel: Callable[..., Any]) -> bool:
    """Whether the function takes the arguments that paged attention needs."""
    return inspect.signature(kernel).parameters.keys() >= NEEDED


@dataclass(frozen=True)
class VarlenPlan:
    """The kernel's arguments besides q, K and V. It needs lengths and tables as int32."""

    cu_seq_q: Tensor  # (B + 1,)
    cu_seq_k: Tensor  # (B + 1,)
    max_q: int
    max_k: int
    seqused_k: Tensor  # (B,)
    block_table: Tensor  # (B, P)
    window: int


class VarlenAttention:
    """torch.nn.attention.varlen over pages. K and V are not split, so other requests do not change a result."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self._kernel = kernel
        self._options = {"num_splits": 1} if "num_splits" in inspect.signature(kernel).parameters else {}

    def longest_at_once(self, num_decodes: int) -> int | None:
        """See AttentionBackend. Any batch takes one pass."""
        return None

    def plan(self, inp: ModelInput, layout: LayerLayout, window: int = 0) -> VarlenPlan:
        """Takes query lengths from the host and context lengths from the device. Reads nothing back.

        A batch of decodes alone copies nothing from the host, so a graph can capture it. ConfigError if there is a tree
        mask.
        """
        if inp.tree_starts_D is not None:
            reason = "but it has no tree mask, which --speculative-eagle-topk above 1 needs"
            raise ConfigError(f"--attention-backend: got 'varlen', {reason}", param="attention-backend")
        del layout
        device = inp.seq_lens_B.device
        query_lens = inp.extend_lens + (1,) * inp.num_decodes
        if inp.extend_lens:
            host_cu_seq_q = torch.tensor((0, *query_lens), dtype=torch.int32).cumsum(0, dtype=torch.int32)
            cu_seq_q = host_cu_seq_q.to(device, non_blocking=True)
        else:
            cu_seq_q = torch.arange(inp.num_decodes + 1, dtype=torch.int32, device=device)

        seqused_k = inp.seq_lens_B.to(torch.int32)
        return VarlenPlan(
            cu_seq_q=cu_seq_q,
            cu_seq_k=torch.nn.functional.pad(seqused_k.cumsum(0, dtype=torch.int32), (1, 0)),
            max_q=max(query_lens, default=0),
            max_k=max((*inp.extend_seq_lens, inp.max_decode_seq_len)),
            seqused_k=seqused_k,
            block_table=inp.page_table_BP.to(torch.int32).contiguous(),
            window=window,
        )

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: VarlenPlan, scoring: Scoring = PLAIN) -> Tensor:
        """(T, H, D): softmax(q k / sqrt(D)) v over what each token sees of its own context."""
        assert scoring.sinks_H is None, "ModelRunner.load refuses sinks with this backend"
        if not plan.max_q:
            return torch.empty_like(q_THD)

        out_THD: Tensor = self._kernel(
            q_THD.contiguous(),
            kv_layer.select(1, 0),
            kv_layer.select(1, 1),
            plan.cu_seq_q,
            plan.cu_seq_k,
            plan.max_q,
            plan.max_k,
            window_size=(plan.window - 1, 0),  # causal; the last query is aligned with the last of seqused_k
            enable_gqa=True,
            seqused_k=plan.seqused_k,
            block_table=plan.block_table,
            **self._options,
            **({} if scoring.scale is None else {"scale": scoring.scale}),
        )
        return out_THD


def trial(attention: VarlenAttention, layout: LayerLayout, num_heads: int, device: torch.device) -> str | None:
    """Compares one small mixed batch with the CPU backend. None if they agree, else one sentence with the fault."""
    inp, q_THD, kv_layer = _trial_batch(layout, num_heads)
    cpu = CpuAttention()
    expected_THD = cpu.attend(q_THD, kv_layer, cpu.plan(inp, layout))

    try:
        plan = attention.plan(inp.mapped(lambda tensor: tensor.to(device)), layout)
        out_THD = attention.attend(q_THD.to(device), kv_layer.to(device), plan).cpu()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"torch's varlen attention refuses pages of {layout.page_size} {layout.dtype} tokens here: {error}"

    difference = float((out_THD.float() - expected_THD.float()).abs().max())
    return None if difference < _TRIAL_TOLERANCE else f"torch's varlen attention is off by {difference:.3g} here"


def _trial_batch(layout: LayerLayout, num_heads: int) -> tuple[ModelInput, Tensor, Tensor]:
    """A chunk of 3 tokens after 2 of prefix, and a decode at 7 tokens, on shuffled pages."""
    generator = torch.Generator().manual_seed(0)
    dtype = TORCH_DTYPES[layout.dtype]
    width = layout.num_pages(7)
    shape = (2 * width + 1, 2, layout.page_size, layout.num_kv_heads, layout.head_dim)
    kv_layer = torch.randn(shape, generator=generator).to(dtype)
    q_THD = torch.randn((4, num_heads, layout.head_dim), generator=generator).to(dtype)

    table_BP = (torch.randperm(2 * width, generator=generator) + 1).view(2, width)
    positions_T = torch.tensor([2, 3, 4, 6])
    pages_T = table_BP[torch.tensor([0, 0, 0, 1]), positions_T // layout.page_size]
    inp = ModelInput(
        input_ids_T=torch.zeros(4, dtype=torch.int64),
        positions_T=positions_T,
        slots_T=pages_T * layout.page_size + positions_T % layout.page_size,
        page_table_BP=table_BP,
        seq_lens_B=torch.tensor([5, 7]),
        extend_lens=(3,),
        extend_seq_lens=(5,),
        num_decodes=1,
        max_decode_seq_len=7,
        logit_indices_L=torch.tensor([3]),
    )
    return inp, q_THD, kv_layer
