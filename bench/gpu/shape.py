"""The model that decode, prefill and profile compute: Qwen3-8B's shape, random weights made where they are used.

It is loaded as a checkpoint is, so that what runs is what serves. What it does not know: what is timed.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from loadtest.bench_model import CONFIG
from model.attention import choose_attention
from model.checkpoint import Checkpoint
from model.config import ModelConfig, load_config
from model.graphs import Capture, CudaCapture, GraphedRunner, Run
from model.inputs import ModelInput
from model.paged_kv import PagedKv, torch_dtype
from model.passes import TorchPasses
from model.runner import ModelRunner
from model.transformer import load_decoder
from protocol.kv_layout import KvLayout

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
    """A checkpoint without files: every tensor that is asked for is there, with random numbers in it."""

    def __init__(self) -> None:
        super().__init__(Path(), {})

    def __contains__(self, name: str) -> bool:
        return True

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Normal numbers; norms are ones."""
        if "norm" in name:
            return torch.ones(shape, dtype=dtype, device=device)
        return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, WEIGHT_STD)


def config_of(fields: Mapping[str, Any]) -> ModelConfig:
    """Reads these fields as a config.json."""
    with tempfile.TemporaryDirectory(prefix="baton-gpu-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(dict(fields)))
        return load_config(Path(folder))


def random_runner(fields: Mapping[str, Any], device: str, page_size: int) -> ModelRunner:
    """The model of these fields on the device, in bfloat16, the same numbers each time."""
    config, where = config_of(fields), torch.device(device)
    torch.manual_seed(0)
    passes = TorchPasses(config.num_heads, config.head_dim, config.rms_norm_eps)
    compute = torch_dtype(DTYPE)
    weights = RandomWeights()
    decoder = load_decoder(weights, config, passes, to_dtype=compute, to_device=where)
    _made(where)
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, page_size, DTYPE)
    attention = choose_attention("auto", where, layout, config.num_heads, compute, config.context_length)
    return ModelRunner(config, where, DTYPE, decoder, attention, weights)


def device_runner(device: str, page_size: int) -> ModelRunner:
    """Qwen3-8B's shape; on a CPU a tiny one."""
    return random_runner(QWEN3_8B if device == "cuda" else TINY, device, page_size)


def words_of(config: ModelConfig, device: str) -> str:
    """The shape of `device_runner` in a few words."""
    name = "Qwen3-8B's shape" if device == "cuda" else "a tiny shape"
    return (
        f"{name}: {config.num_layers} layers, hidden {config.hidden_size:,}, {config.num_heads} heads and"
        f" {config.num_kv_heads} KV heads of {config.head_dim}, intermediate {config.intermediate_size:,}, vocabulary"
        f" {config.vocab_size:,}, {DTYPE}, random weights"
    )


# ---- what a forward must move and compute ----


def layer_weights(config: ModelConfig) -> int:
    """Numbers in the products of one layer."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (queries + 2 * keys) + queries * config.hidden_size
    return attention + 3 * config.hidden_size * config.intermediate_size


def decode_bytes(config: ModelConfig, layout: KvLayout, batch: int, context: int) -> int:
    """The least that a decode step reads: every weight once (of the embedding a row each), and each request's KV."""
    weights = config.num_layers * layer_weights(config) + config.vocab_size * config.hidden_size
    item_bytes = torch_dtype(layout.dtype).itemsize
    kv = batch * context * 2 * layout.token_bytes * layout.num_layers
    return (weights + batch * config.hidden_size) * item_bytes + kv


def prefill_flops(config: ModelConfig, num_tokens: int) -> float:
    """Of a whole prompt: products of every layer, causal attention, and the head for the last token alone."""
    products = 2.0 * num_tokens * config.num_layers * layer_weights(config)
    pairs = num_tokens * (num_tokens + 1) / 2
    attention = 4.0 * pairs * config.num_heads * config.head_dim * config.num_layers
    return products + attention + 2.0 * config.vocab_size * config.hidden_size


# ---- runners ----


class WithoutPrompts(GraphedRunner):
    """Computes decodes only, by graphs once they are captured: a prompt's KV is whatever lies in its pages, its next
    token any."""

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Zeros where there are prompts in the batch; else as GraphedRunner."""
        if inp.extend_lens:
            return torch.zeros(inp.logit_indices_L.shape[0], self.config.vocab_size, device=self.device)
        return super().forward(inp, kv, on_layer)


def run_again(run: Run) -> Run:
    """In place of a CUDA graph where there is no device: the same work once more."""
    return run


def maker_of_graphs(device: torch.device) -> Capture:
    """CUDA graphs; on a CPU what stands in for them."""
    return CudaCapture() if device.type == "cuda" else run_again


def words_of_graphs(device: str) -> str:
    """What `maker_of_graphs` makes."""
    return "graphs" if device == "cuda" else "a stand-in for graphs"


def noise(kv: PagedKv) -> None:
    """Every page but the padding page holds random numbers: zeros may be faster."""
    for layer in range(kv.layout.num_layers):
        kv.layer(layer)[1:].normal_()
    _made(kv.device)


def _made(device: torch.device) -> None:
    """What was made on the current stream is there for other streams."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def prompt_input(num_tokens: int, start: int, page_size: int, vocab_size: int, device: torch.device) -> ModelInput:
    """Tokens [start, start + num_tokens) of one prompt in pages 1, 2, ..., whose last token's logits are wanted."""
    end = start + num_tokens
    positions_T = torch.arange(start, end, dtype=torch.int64, device=device)
    return ModelInput(
        input_ids_T=torch.randint(vocab_size, (num_tokens,), dtype=torch.int64, device=device),
        positions_T=positions_T,
        slots_T=positions_T + page_size,
        page_table_BP=1 + torch.arange(-(-end // page_size), dtype=torch.int64, device=device)[None],
        seq_lens_B=torch.tensor([end], dtype=torch.int64, device=device),
        extend_lens=(num_tokens,),
        extend_seq_lens=(end,),
        num_decodes=0,
        max_decode_seq_len=0,
        logit_indices_L=torch.tensor([num_tokens - 1], dtype=torch.int64, device=device),
    )
