"""`python -m bench.step.windows`: the attention of a decode in a layer with a window, beside a full one, by context.

CPU time of one thread in the C kernel, the two layers in turn. The heads are those of a 7B model: 32, 8 for K and V, of
128 numbers in bfloat16.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

import torch

from model.attention_cpu import CpuAttention
from model.cpu_kernels import load_kernels
from model.fake import FakeRunner
from model.paged_kv import PagedKv
from model.scoring import PLAIN, Scoring
from protocol.kv_layout import KvLayout
from runtime.model_parts import AttentionConfig, LayerConfig, MlpConfig
from testkit.inputs import decodes

HEADS: Final = (32, 8, 128)  # of queries, of K and V, numbers of a head
PAGE_SIZE: Final = 16
WINDOW: Final = 1024
CONTEXTS: Final = (512, 1024, 4096, 16_384, 65_536)
ROUNDS: Final = 21
PASSES: Final = 5  # of a round


def attention_us(
    heads: tuple[int, int, int], context: int, scorings: Sequence[Scoring], rounds: int = ROUNDS
) -> list[float]:
    """Microseconds of a decode at this context with each scoring: medians of rounds in which all take turns."""
    torch.set_num_threads(1)
    layer = LayerConfig(AttentionConfig(*heads), MlpConfig(1))
    kernels = load_kernels(replace(FakeRunner().config, layers=(layer,)), torch.bfloat16, "bfloat16")
    kv = PagedKv(KvLayout.uniform(1, *heads[1:], PAGE_SIZE, "bfloat16"), context // PAGE_SIZE + 2)
    kv.layer(0).normal_(generator=torch.Generator().manual_seed(0))
    q_THD = torch.randn((1, heads[0], heads[2])).bfloat16()
    backend = CpuAttention(torch.bfloat16, kernels)
    num_pages = -(-context // PAGE_SIZE)
    inp = decodes(torch.zeros(1), torch.tensor([context - 1]), torch.arange(1, num_pages + 1)[None], PAGE_SIZE)
    plans = [backend.plan(inp, kv.layout.layer(0), scoring.window) for scoring in scorings]

    seconds = [list[float]() for _ in scorings]
    for _ in range(rounds):
        for plan, scoring, taken in zip(plans, scorings, seconds, strict=True):
            begin = time.thread_time()
            for _ in range(PASSES):
                backend.attend(q_THD, kv.layer(0), plan, scoring)
            taken.append((time.thread_time() - begin) / PASSES)
    return [median(taken) * 1e6 for taken in seconds]


def main() -> None:
    """Prints a table."""
    print(f"| context | full (us) | window of {WINDOW} | ratio |\n|---|---|---|---|")
    for context in CONTEXTS:
        full, window = attention_us(HEADS, context, (PLAIN, Scoring(WINDOW)))
        print(f"| {context:,} | {full:.0f} | {window:.0f} | {full / window:.1f} |")


if __name__ == "__main__":
    main()
