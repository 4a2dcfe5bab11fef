"""What a mixture of experts costs on a CPU, beside a dense model with as many active parameters, and beside others.

    packed          experts in C, weights packed into this process's memory
    in place        experts in C, weights read in the mapped file, as where a packed copy is too large
    torch           one product per expert, without C
    dense           Qwen3 whose MLP is as wide as the experts of a token together, in C
    transformers    the same folder, with a KV cache

The shape is that of Qwen3-30B-A3B with fewer layers and half its widths: 128 experts, 8 for a token. All sides compute
on one thread of this process; its CPU time is what counts, so that a busy machine changes little.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from bench.rounds import in_rounds
from bench.sheet import Sheet
from bench.step.decoding import PAGE_SIZE
from bench.step.flags import count
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import ModelRunner
from testkit.checkpoints import make_checkpoint

EXPERTS, CHOSEN, SCALE = 128, 8, 2
SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 4096,
    "hidden_size": 2048 // SCALE,
    "num_attention_heads": 32 // SCALE,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
}
WIDTH: Final = 768 // SCALE  # of an expert
MANY: Final = 10_000  # workers on a host: none may pack its weights
ABOUT = "Milliseconds of CPU time of one thread: median of rounds in turn. *decode of N*: one step of N requests."
Run = Callable[[], object]


def flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this part."""
    parser.add_argument("--layers", type=count, default=2, help="(default 2)")
    parser.add_argument("--experts", type=count, default=EXPERTS, help=f"of a layer (default {EXPERTS})")
    parser.add_argument("--context", type=count, default=256, help="tokens of each request (default 256)")
    parser.add_argument("--prompt", type=count, default=256, help="tokens of the prompt (default 256)")
    parser.add_argument("--batches", type=count, nargs="*", default=(1, 16), help="(default 1 16)")
    parser.add_argument("--rounds", type=count, default=7, help="of each side, in turn (default 7)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(default bfloat16)")


def measure(asked: argparse.Namespace, sheet: Sheet) -> None:
    """Writes a table: a row for each side, a column for each kind of forward."""
    with tempfile.TemporaryDirectory(prefix="baton-experts-") as folder:
        sides = sides_of(asked, Path(folder))
        kinds = {f"decode of {batch}": (batch, 0) for batch in asked.batches} | {
            f"prompt of {asked.prompt}": (0, asked.prompt)
        }
        cells: dict[str, dict[str, Any]] = {name: {"side": name} for name in sides}
        for kind, (batch, prompt) in kinds.items():
            runs = {name: partial(_cpu_ms, make(batch, prompt, asked.context)) for name, make in sides.items()}
            for name, found in in_rounds(runs, asked.rounds, warm_up=1).items():
                cells[name][kind] = median(found)
    for row in cells.values():
        sheet.row(f"A mixture of experts, {asked.dtype}", row, ABOUT)


def sides_of(asked: argparse.Namespace, folder: Path) -> Mapping[str, Callable[[int, int, int], Run]]:
    """By name: what makes a run of so many decodes, or of a prompt of so many tokens, in contexts of so many."""
    shape = SHAPE | {"num_hidden_layers": asked.layers}
    of_experts = make_checkpoint(
        folder / "experts", "qwen3_moe", dtype=asked.dtype, num_experts=asked.experts, num_experts_per_tok=CHOSEN,
        moe_intermediate_size=WIDTH, mlp_only_layers=[], intermediate_size=WIDTH, **shape,
    )  # fmt: skip
    dense = make_checkpoint(folder / "dense", "qwen3", dtype=asked.dtype, intermediate_size=CHOSEN * WIDTH, **shape)

    load = partial(ModelRunner.load, device="cpu", dtype=asked.dtype)
    runners = {"in place": load(of_experts, workers_on_host=MANY)}
    if asked.dtype == "bfloat16":
        runners = {"packed": load(of_experts), **runners}
    runners |= {"torch": load(of_experts, cpu_kernels=False, workers_on_host=MANY), "dense": load(dense)}
    others = AutoModelForCausalLM.from_pretrained(of_experts, dtype=getattr(torch, asked.dtype)).eval()
    return {name: partial(ours, runner) for name, runner in runners.items()} | {"transformers": partial(theirs, others)}


def ours(runner: ModelRunner, batch: int, prompt: int, context: int) -> Run:
    """One forward of a runner: decodes, each with KV of its own, or a prompt without any."""
    rows, length = (batch, context) if batch else (1, prompt)
    layout = runner.kv_layout(PAGE_SIZE)
    pages = layout.num_pages(length)
    kv = PagedKv(layout, 1 + rows * pages, runner.device)
    for layer in range(layout.num_layers):
        kv.layer(layer).normal_()

    table_BP = torch.arange(1, 1 + rows * pages).view(rows, pages)
    first = length - 1 if batch else 0
    positions_T = torch.arange(first, length).repeat(rows)
    of_row_T = torch.arange(rows).repeat_interleave(length - first)
    slots_T = table_BP[of_row_T, positions_T // PAGE_SIZE] * PAGE_SIZE + positions_T % PAGE_SIZE
    inp = ModelInput(
        input_ids_T=_ids(positions_T.numel()),
        positions_T=positions_T,
        slots_T=slots_T,
        page_table_BP=table_BP,
        seq_lens_B=torch.full((rows,), length),
        extend_lens=() if batch else (prompt,),
        extend_seq_lens=() if batch else (prompt,),
        num_decodes=batch,
        max_decode_seq_len=length if batch else 0,
        logit_indices_L=torch.arange(rows) if batch else torch.tensor([prompt - 1]),
    )
    return partial(runner.forward, inp, kv)


def theirs(model: torch.nn.Module, batch: int, prompt: int, context: int) -> Run:
    """The same with transformers. A step is taken back when it is over."""

    @torch.inference_mode()
    def decode(cache: DynamicCache) -> None:
        model(_ids(batch).view(batch, 1), past_key_values=cache, use_cache=True)
        cache.crop(-1)

    @torch.inference_mode()
    def compute() -> DynamicCache:
        found: DynamicCache = model(
            _ids(max(batch, 1) * (context - 1 if batch else prompt)).view(max(batch, 1), -1), use_cache=True,
            logits_to_keep=1,
        ).past_key_values  # fmt: skip
        return found

    return partial(decode, compute()) if batch else compute


def _ids(number: int) -> torch.Tensor:
    rng = random.Random(number)
    return torch.tensor(rng.choices(range(SHAPE["vocab_size"]), k=number))


def _cpu_ms(run: Run) -> float:
    start = time.thread_time()
    run()
    return (time.thread_time() - start) * 1e3
