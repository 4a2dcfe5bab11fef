"""KV from one process's device memory into another's, beside a copy within the device: 32k tokens of Qwen3-8B's shape.

bench/transfer/cuda_ipc.py moves it.
"""

from typing import Final

from bench.gpu.sheet import Sheet
from bench.transfer.cuda_ipc import LAYOUT, NUM_TOKENS
from bench.transfer.cuda_ipc import measure as measure_ipc
from protocol.kv_layout import KvLayout

COPY_SHARE: Final = 0.8
TINY: Final = KvLayout.uniform(num_layers=2, num_kv_heads=2, head_dim=16, page_size=16, dtype="bfloat16")
STAND_IN: Final = "Shared memory of the host stands in for device memory, and torch on the CPU for the kernel."
ABOUT: Final = "Bytes moved once a second; the copy is counted likewise. *check*: what decode's sum over it takes."


def measure(sheet: Sheet, device: str) -> None:
    """Runs the step."""
    is_gpu = device == "cuda"
    layout, num_tokens, repeat = (LAYOUT, NUM_TOKENS, 15) if is_gpu else (TINY, 512, 2)
    figures = measure_ipc(repeat, num_tokens, layout, device)
    if figures is None:
        raise RuntimeError("there is no CUDA device")
    for name, key in (("in order", "gb_s"), ("scattered", "scattered_gb_s")):
        share = figures[key] / figures["limit_gb_s"]
        cells = {"pages": name, "tokens": num_tokens, "MB": figures["bytes"] / 1e6, "GB/s": figures[key]}
        cells |= {"ms": figures["bytes"] / figures[key] / 1e6, "device copy GB/s": figures["limit_gb_s"]}
        cells |= {"share": share, "check ms": figures["check_ms_32k"]}
        sheet.row("KV from process to process", cells, ABOUT if is_gpu else STAND_IN)
        sheet.goal(f"{name}: share of a device copy", share, "at least", COPY_SHARE)
