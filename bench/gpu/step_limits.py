"""What has a limit of the device beside it: prompts of Qwen3-8B's shape, and their KV from process to process.

    prefill    a prompt's forward, beside the matrix-product peak of the same run
    ipc        32k tokens of KV from one process's device memory into another's, beside a copy within the device;
               with the host's time and the device's apart; then the host memory of a twin: pinned, and copied

bench/transfer/cuda_ipc.py moves the KV.
"""

from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Final

import torch

from bench.device_seconds import seconds_each
from bench.gpu.shape import device_runner, prefill_flops, prompt_input, words_of
from bench.gpu.sheet import StepSheet
from bench.gpu.timing import Limits, measured_limits
from bench.records import Value
from bench.step.decoding import PAGE_SIZE
from bench.transfer.cuda_ipc import LAYOUT, NUM_TOKENS
from bench.transfer.cuda_ipc import measure as moved
from bench.transfer.launches import WAYS
from model.paged_kv import PagedKv
from model.pinned_memory import PIECE_BYTES, pin
from model.runner import ModelRunner
from protocol.kv_layout import KvLayout

PEAK_SHARE: Final = 0.6
PROMPT_ABOUT: Final = (
    "One prompt, the forward alone. *share of peak*: products, causal attention and the head for one token, over the"
    " rate of a product of large square matrices."
)


@dataclass(frozen=True)
class Size:
    """Prompts as (tokens, tokens of a chunk)."""

    prompts: tuple[tuple[int, int], ...]
    repeat: int
    part_s: float


SIZES: Final = {
    "cuda": Size(((2048, 2048), (8192, 8192), (8192, 2048)), repeat=7, part_s=10),
    "cpu": Size(((32, 32), (48, 16)), repeat=2, part_s=15),
}


def measure_prefill(sheet: StepSheet, device: str) -> None:
    """Runs the step `prefill`."""
    size, runner = SIZES[device], device_runner(device, PAGE_SIZE)
    limits = measured_limits(runner.device)
    sheet.note(f"{words_of(runner.config, device)}; {limits.words}")
    for tokens, chunk in size.prompts:
        what = f"{tokens:,} tokens in chunks of {chunk:,}"
        sheet.part(what, size.part_s, partial(_one, sheet, runner, limits, tokens, chunk, size.repeat))


@torch.inference_mode()
def _one(sheet: StepSheet, runner: ModelRunner, limits: Limits, tokens: int, chunk: int, repeat: int) -> None:
    layout, vocab_size = runner.kv_layout(PAGE_SIZE), runner.config.vocab_size
    kv = PagedKv(layout, 1 + layout.num_pages(tokens), runner.device)
    inputs = [
        prompt_input(min(chunk, tokens - start), start, PAGE_SIZE, vocab_size, runner.device)
        for start in range(0, tokens, chunk)
    ]

    def whole_prompt() -> None:
        for inp in inputs:
            runner.forward(inp, kv)

    seconds = median(seconds_each(whole_prompt, repeat, runner.device, warm_up=2))
    rate = prefill_flops(runner.config, tokens) / seconds
    share = rate / limits.product_flops_s
    cells = {"tokens": tokens, "chunk": chunk, "ms": seconds * 1e3, "tokens/s": tokens / seconds}
    sheet.row("A prompt", {**cells, "TFLOP/s": rate / 1e12, "share of peak": share}, PROMPT_ABOUT)
    if chunk == tokens:
        sheet.goal(f"{tokens:,} tokens: share of the matrix-product peak", share, "at least", PEAK_SHARE)


# ---- KV ----

COPY_SHARE: Final = 0.8
TINY_KV: Final = KvLayout.uniform(num_layers=2, num_kv_heads=2, head_dim=16, page_size=16, dtype="bfloat16")
STAND_IN: Final = "Shared memory of the host stands in for device memory, and torch on the CPU for the kernel."
WAYS_ABOUT: Final = (
    "All layers of the same prompt. *together*: one call, as workers make it for layers that are ready together."
    " *layer by layer*: a call for each, as when each becomes ready while the device computes the next one."
    " *host*: until it has launched all. *device*: between events before the first kernel and behind the last; *GB/s*"
    " is of it. *wall*: until the host knows that all are done. Where device is hardly longer than host, the host is"
    " the limit."
)
IPC_S: Final = 22.0  # the greatest time of a part, with the start of its other process
KV_ABOUT: Final = "Bytes moved once a second; the copy is counted likewise. *check*: what decode's sum over it takes."


def measure_ipc(sheet: StepSheet, device: str) -> None:
    """Runs the step `ipc`."""
    sheet.part("KV from process to process", IPC_S, partial(_kv, sheet, device))
    sheet.part("pinned memory", PIN_S, partial(_pinned, sheet, device))


def _kv(sheet: StepSheet, device: str) -> None:
    """All layers in one call, beside a copy within the device; then in both ways, so that the host's time and the
    device's can be told apart."""
    layout, num_tokens, repeat = (LAYOUT, NUM_TOKENS, 15) if device == "cuda" else (TINY_KV, 512, 2)
    figures = moved(repeat, num_tokens, layout, device, WAYS)
    if figures is None:
        raise RuntimeError("there is no CUDA device")
    for name, key in (("in order", "gb_s"), ("scattered", "scattered_gb_s")):
        share = figures[key] / figures["limit_gb_s"]
        cells = {"pages": name, "tokens": num_tokens, "MB": figures["bytes"] / 1e6, "GB/s": figures[key]}
        cells |= {"ms": figures["bytes"] / figures[key] / 1e6, "device copy GB/s": figures["limit_gb_s"]}
        cells |= {"share": share, "check ms": figures["check_ms_32k"]}
        sheet.row("KV from process to process", cells, KV_ABOUT if device == "cuda" else STAND_IN)
        sheet.goal(f"{name}: share of a device copy", share, "at least", COPY_SHARE)

    about = WAYS_ABOUT if device == "cuda" else f"{WAYS_ABOUT} {STAND_IN} So the three times are one."
    for row in figures["ways"]:
        cells = {"work": row["what"], "pages": row["order"], "way": row["way"]}
        cells |= {f"{name} ms": row[name] * 1e3 for name in ("wall", "host", "device")}
        sheet.row("The host's time and the device's", cells | {"GB/s": figures["bytes"] / row["device"] / 1e9}, about)


# ---- the twin in host memory ----

PIN_S: Final = 20.0
PIN_ABOUT: Final = "Host memory that a GPU is let reach, and a copy of one GB there and back."


def _pinned(sheet: StepSheet, device: str) -> None:
    """On a CPU nothing is pinned, and memory is copied within the host."""
    is_gpu, where = device == "cuda", torch.device(device)
    layout, num_pages = (LAYOUT, PIECE_BYTES // LAYOUT.all_page_bytes) if is_gpu else (TINY_KV, 100)
    host = PagedKv(layout, num_pages, "cpu")
    start = perf_counter()
    pin(host, where, "max-total-tokens")
    cells: dict[str, Value] = {"GB": host.device_bytes.nbytes / 1e9, "seconds": perf_counter() - start}

    there = host.device_bytes[: 1 << 30]
    here = torch.empty_like(there, device=where)
    copies = {"to the device GB/s": (here, there), "to the host GB/s": (there, here)}
    for words, (target, source) in copies.items():
        seconds = median(seconds_each(partial(target.copy_, source, non_blocking=True), 5, where))
        cells[words] = there.nbytes / seconds / 1e9
    sheet.row("Pinned host memory", cells, PIN_ABOUT)
