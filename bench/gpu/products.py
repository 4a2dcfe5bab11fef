"""The products of a decode step by themselves: all layers' linears with their own weights, and the head.

Each kind of linear runs through all layers in one graph, so no weight is still in the device's cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from bench.device_seconds import seconds_each
from bench.gpu.shape import maker_of_graphs
from bench.gpu.timing import Limits
from model.mlp import Mlp
from model.runner import ModelRunner
from model.transformer import Decoder
from runtime.model_config import ModelConfig


@dataclass(frozen=True)
class Product:
    """The linears of one kind. Each multiplies (rows, inputs) by (inputs, outputs)."""

    name: str
    inputs: int
    outputs: int
    linears: tuple[Callable[[Tensor], object], ...]

    @property
    def weights(self) -> int:
        """The number of weights of all its linears."""
        return len(self.linears) * self.inputs * self.outputs

    def floor_s(self, rows: int, item_bytes: int, limits: Limits) -> float:
        """The least time: each weight is read once, each operation computed at the rate of a large product."""
        return max(self.weights * item_bytes / limits.copy_bytes_s, 2.0 * self.weights * rows / limits.product_flops_s)


def products_of(decoder: Decoder, config: ModelConfig) -> list[Product]:
    """The products of a dense model, in the order of a layer; the head last."""
    mixers, feeds = [layer.mixer for layer in decoder.layers], [layer.feed for layer in decoder.layers]
    mlps = [feed for feed in feeds if isinstance(feed, Mlp)]
    assert len(mlps) == len(feeds), "a feed is no whole MLP"
    hidden, intermediate = config.hidden_size, config.layers[0].feed.active_width
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return [
        Product("q, k, v", hidden, queries + 2 * keys, tuple(mixer.qkv for mixer in mixers)),
        Product("attention's output", queries, hidden, tuple(mixer.output for mixer in mixers)),
        Product("gate and up", hidden, 2 * intermediate, tuple(mlp.gate_up for mlp in mlps)),
        Product("down", intermediate, hidden, tuple(mlp.down for mlp in mlps)),
        Product("head", hidden, config.vocab_size, (decoder.head,)),
    ]


@torch.inference_mode()
def seconds_of(product: Product, rows: int, runner: ModelRunner, repeat: int) -> float:
    """The median time in which all linears of the product run once, on random numbers."""
    dtype = runner.decoder.embedding_VE.dtype
    x_TI = torch.randn(rows, product.inputs, device=runner.device).to(dtype)
    run = partial(_run_all, product.linears, x_TI)
    run()
    return median(seconds_each(maker_of_graphs(runner.device)(run), repeat, runner.device))


def _run_all(linears: Sequence[Callable[[Tensor], object]], x_TI: Tensor) -> None:
    for linear in linears:
        linear(x_TI)
