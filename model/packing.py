"""How a worker holds a model's weights: as the file has them, packed for faster products, or widened to float32.

On a CPU it also decides whether a token has the same bits in any batch. Models with experts are computed so where C has
the products: where a router's scores nearly tie, the last bit of a hidden state decides which expert a token gets.
"""

from dataclasses import dataclass
from functools import partial

import torch

from model.cpu_build import NoKernels
from model.cpu_kernels import CpuKernels, load_kernels
from model.cpu_products import Threads, in_place, pack_bfloat16
from model.host_memory import available_bytes
from model.kv_sizing import PACKED_SHARE, WIDENED_SHARE, worth_packing
from model.linear import Pack, has_fast_bfloat16, pack
from model.paged_kv import TORCH_DTYPES
from runtime.log import get_log
from runtime.model_config import ModelConfig

log = get_log("model")


@dataclass(frozen=True)
class Packing:
    """`compute` is the dtype of activations; with `pack` linears are made of the checkpoint's weights."""

    compute: torch.dtype
    pack: Pack | None = None
    packed: bool = False  # linears hold copies of the weights, laid out for cpu_products.py or oneDNN
    widened: bool = False  # bfloat16 is computed in float32, on a CPU without instructions for it
    narrow: bool = False  # linears are those of cpu_products.py: their weights are bfloat16 in memory, widened or not
    row_exact: bool = False  # a token has the same bits in any batch, whether it is decoded or part of a chunk


def choose_packing(
    config: ModelConfig,
    device: torch.device,
    dtype: str,
    weight_bytes: int,
    *,
    workers_on_host: int,
    threads: Threads,
    cpu_kernels: bool = True,
) -> Packing:
    """How a worker holds `weight_bytes` of weights in `dtype`, if so many workers share the host's memory."""
    if device.type != "cpu" or dtype not in ("bfloat16", "float32"):
        return Packing(TORCH_DTYPES[dtype])
    if dtype == "float32":
        return _of_float32(config, threads, cpu_kernels=cpu_kernels)

    widen = not has_fast_bfloat16()
    rows = torch.float32 if widen else torch.bfloat16
    products = kernels_of(config, rows, dtype, threads) if cpu_kernels else None
    narrow = products is not None and products.has_products
    own_bytes = weight_bytes * (2 if widen and not narrow else 1)
    share = WIDENED_SHARE if widen else PACKED_SHARE
    if not worth_packing(own_bytes, available_bytes(device), workers_on_host, share):
        if products is not None and narrow and not widen and config.has_experts:
            return _in_place(products, rows)
        return Packing(torch.bfloat16)

    how = Pack(pack)
    if narrow and products is not None:
        how = Pack(partial(pack_bfloat16, library=products.library, threads=threads, dtype=rows))
    row_exact = narrow and config.has_experts
    return Packing(rows, how, packed=True, widened=widen, narrow=narrow, row_exact=row_exact)


def _of_float32(config: ModelConfig, threads: Threads, *, cpu_kernels: bool) -> Packing:
    """Weights stay in the file; those of a model with experts are multiplied in C."""
    kernels = kernels_of(config, torch.float32, "float32", threads) if cpu_kernels and config.has_experts else None
    return Packing(torch.float32) if kernels is None else _in_place(kernels, torch.float32)


def _in_place(kernels: CpuKernels, compute: torch.dtype) -> Packing:
    make = partial(in_place, library=kernels.library, threads=kernels.threads)
    return Packing(compute, Pack(make, copies=False), row_exact=True)


def kernels_of(config: ModelConfig, compute: torch.dtype, pages: str, threads: Threads) -> CpuKernels | None:
    """The kernels for a model that computes in `compute`; None, with a warning, if they cannot be used here."""
    try:
        return load_kernels(config, compute, pages, threads)
    except NoKernels as error:
        log.warning("without CPU kernels: slower", why=str(error))
        return None
