"""The model of the decode, prefill, drafts and trace steps: Qwen3-8B's shape, with random weights made on the device.

It is loaded like a checkpoint, so that the code that serves is measured.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bench.gpu.timing import Limits
from loadtest.bench_model import CONFIG
from model.attention import choose_attention
from model.checkpoint import Checkpoint, Part
from model.collectives import Collectives
from model.cuda_capture import Capture, CudaCapture, Run
from model.eagle import load_eagle
from model.graphs import GraphedRunner
from model.inputs import ModelInput
from model.packing import Packing
from model.paged_kv import TORCH_DTYPES, PagedKv
from model.runner import ModelRunner, passes_of
from model.transformer import load_decoder
from protocol.kv_layout import KvLayout, pages_for
from runtime.draft_config import DraftConfig
from runtime.model_config import ModelConfig, load_config
from testkit.inputs import chunks

QWEN3_8B: Final[Mapping[str, Any]] = {
    **CONFIG,
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
TINY: Final[Mapping[str, Any]] = {
    **CONFIG,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
DTYPE: Final = "bfloat16"
WEIGHT_STD: Final = 0.02


class RandomWeights(Checkpoint):
    """A checkpoint without files: it has every tensor that is asked for, with random numbers."""

    def __init__(self) -> None:
        super().__init__(Path(), {})

    def __contains__(self, name: str) -> bool:
        return True

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, part: Part | None = None
    ) -> Tensor:
        """Normal numbers; ones for norms."""
        if part is not None:
            shape = (*shape[: part.dim], part.size, *shape[part.dim + 1 :])
        if "norm" in name:
            return torch.ones(shape, dtype=dtype, device=device)
        return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, WEIGHT_STD)


class RandomDraftWeights(RandomWeights):
    """Those of an EAGLE draft that takes embedding and head from its target."""

    def __contains__(self, name: str) -> bool:
        return name not in ("embed_tokens.weight", "lm_head.weight", "fc.bias")


def config_of(fields: Mapping[str, Any]) -> ModelConfig:
    """Reads these fields as a config.json."""
    with tempfile.TemporaryDirectory(prefix="baton-gpu-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(dict(fields)))
        return load_config(Path(folder))


def random_runner(
    fields: Mapping[str, Any],
    device: str,
    page_size: int,
    *,
    dtype: str = DTYPE,
    collectives: Collectives | None = None,
    with_draft: bool = False,
) -> ModelRunner:
    """The model of these fields on the device. Its numbers are the same each time.

    `collectives`: as a rank of a group. `with_draft`: with an EAGLE draft of one such layer, whose embedding and head
    are the model's.
    """
    config, where = config_of(fields), torch.device(device)
    torch.manual_seed(0)
    compute = TORCH_DTYPES[dtype]
    weights, passes = RandomWeights(), passes_of(config, where)
    decoder = load_decoder(weights, config, passes, to_dtype=compute, to_device=where, collectives=collectives)
    layout = KvLayout.uniform(config.num_layers, config.num_kv_heads, config.head_dim, page_size, dtype)
    attention = choose_attention("auto", where, layout.layer(0), config.num_heads, compute, config.context_length)
    draft = None
    if with_draft:
        of_draft = DraftConfig("eagle", replace(config, layers=config.layers[:1]), config.vocab_size)
        draft = load_eagle(RandomDraftWeights(), of_draft, decoder, passes, attention)
    _made(where)
    packing = Packing(compute)
    return ModelRunner(config, where, dtype, decoder, attention, weights, packing, draft=draft, collectives=collectives)


def device_runner(device: str, page_size: int, *, with_draft: bool = False) -> ModelRunner:
    """Qwen3-8B's shape; on a CPU a tiny one."""
    return random_runner(QWEN3_8B if device == "cuda" else TINY, device, page_size, with_draft=with_draft)


def words_of(config: ModelConfig, device: str) -> str:
    """The shape of `device_runner` in a few words."""
    name = "Qwen3-8B's shape" if device == "cuda" else "a tiny shape"
    return (
        f"{name}: {config.num_layers} layers, hidden {config.hidden_size:,}, {config.num_heads} heads and"
        f" {config.num_kv_heads} KV heads of {config.head_dim}, intermediate"
        f" {config.layers[0].feed.active_width:,}, vocabulary {config.vocab_size:,}, {DTYPE}, random weights"
    )


# ---- what a forward must move and compute ----


def layer_weights(config: ModelConfig) -> int:
    """The number of weights in the products of one layer of a dense model."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (queries + 2 * keys) + queries * config.hidden_size
    return attention + 3 * config.hidden_size * config.layers[0].feed.active_width


def product_weights(config: ModelConfig) -> int:
    """The number of weights in all products of a decode step: those of the layers, and the head's."""
    return config.num_layers * layer_weights(config) + config.vocab_size * config.hidden_size


def kv_bytes(layout: KvLayout, batch: int, context: int) -> int:
    """The bytes of K and V of all requests, in all layers."""
    return batch * context * layout.all_page_bytes // layout.page_size


def decode_bytes(config: ModelConfig, layout: KvLayout, batch: int, context: int) -> int:
    """The bytes that a decode step must read: each weight once (of the embedding one row each), each request's KV."""
    read = product_weights(config) + batch * config.hidden_size
    return read * TORCH_DTYPES[layout.dtype].itemsize + kv_bytes(layout, batch, context)


@dataclass(frozen=True)
class StepLimits:
    """The least time of a decode step, in seconds."""

    bytes_s: float  # everything is read once
    operations_s: float  # everything is computed at the rate of a large product
    roofline_s: float  # products first, then attention, each as its slower resource allows


def step_limits(config: ModelConfig, layout: KvLayout, batch: int, context: int, limits: Limits) -> StepLimits:
    """What a decode step of this batch cannot be faster than, by the limits that the device has shown."""
    weights, item_bytes = product_weights(config), TORCH_DTYPES[layout.dtype].itemsize
    attended = 4.0 * batch * context * config.num_heads * config.head_dim * config.num_layers
    products = (weights * item_bytes / limits.copy_bytes_s, 2.0 * weights * batch / limits.product_flops_s)
    attention = (kv_bytes(layout, batch, context) / limits.copy_bytes_s, attended / limits.product_flops_s)
    return StepLimits(
        bytes_s=decode_bytes(config, layout, batch, context) / limits.copy_bytes_s,
        operations_s=products[1] + attention[1],
        roofline_s=max(products) + max(attention),
    )


def prefill_flops(config: ModelConfig, num_tokens: int) -> float:
    """Operations of a whole prompt: all layers' products, causal attention, and the head for the last token only."""
    products = 2.0 * num_tokens * config.num_layers * layer_weights(config)
    attention = config.num_layers * attention_flops(config, num_tokens)
    return products + attention + 2.0 * config.vocab_size * config.hidden_size


def attention_flops(config: ModelConfig, num_tokens: int) -> float:
    """Operations of causal attention in one layer: two products over each pair of a token and one before it."""
    return 4.0 * (num_tokens * (num_tokens + 1) / 2) * config.num_heads * config.head_dim


# ---- runners ----


class WithoutPrompts(GraphedRunner):
    """Computes decodes only, by graphs once they are captured. A prompt's KV is whatever its pages hold, and its next
    token is arbitrary."""

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Zeros if the batch has prompts, else as GraphedRunner."""
        if inp.extend_lens:
            return torch.zeros(inp.logit_indices_L.shape[0], self.config.vocab_size, device=self.device)
        return super().forward(inp, kv, on_layer)


def run_again(run: Run) -> Run:
    """Replaces a CUDA graph on a CPU: does the same work again."""
    return run


def maker_of_graphs(device: torch.device) -> Capture:
    """CUDA graphs; on a CPU their replacement."""
    return CudaCapture() if device.type == "cuda" else run_again


def captured(graphed: GraphedRunner) -> GraphedRunner:
    """The runner that was told to capture its graphs. RuntimeError if it could not."""
    if graphed.why_none:
        raise RuntimeError(f"no graphs could be captured: {graphed.why_none}")
    return graphed


def words_of_graphs(device: str) -> str:
    """Describes the graphs that `maker_of_graphs` makes."""
    return "graphs" if device == "cuda" else "a stand-in for graphs"


def noise(kv: PagedKv) -> None:
    """Fills every page but the padding page with random numbers, because zeros may be faster."""
    for layer in range(kv.layout.num_layers):
        kv.layer(layer)[1:].normal_()
    _made(kv.device)


def _made(device: torch.device) -> None:
    """Waits for the current stream, so that other streams see its tensors."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def prompt_input(num_tokens: int, start: int, page_size: int, vocab_size: int, device: torch.device) -> ModelInput:
    """Tokens [start, start + num_tokens) of one prompt in pages 1, 2, ..., with logits of the last token."""
    ids_T = torch.randint(vocab_size, (num_tokens,), device=device)
    pages_P = 1 + torch.arange(pages_for(start + num_tokens, page_size), device=device)
    return chunks(ids_T, (num_tokens,), pages_P[None], page_size, start)
