"""The sampler as a worker calls it behind a forward: device time, host time, and the tokens beside the CPU's.

    device     its kernels alone, without waiting for the host
    host       what the scheduler's thread takes to start them
    torch      the same with torch's operations (TorchDraws) instead of what draws on this device
    one read   the logits read once at the bandwidth of a device copy

A greedy token that differs from the CPU's fails the step. Drawn tokens may differ, because sums are rounded
differently, but rarely.
Shapes: L rows of logits, V vocabulary, W words of a grammar's mask, S tokens of contexts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from bench.gpu.shape import QWEN3_8B, TINY
from bench.gpu.sheet import StepSheet
from bench.gpu.timing import Limits, launched, measured_limits, why_it_waits
from bench.records import Value
from model.sampler import Sampled, TorchDraws, sample_scored
from model.sampling_input import AllowedTokens, Draws
from protocol.logit_rules import LogitRules
from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import SamplingParams
from scheduler.execution.histories import Histories
from scheduler.execution.sampling_columns import SamplingColumns
from scheduler.plan import Draw

CONTEXT: Final = 1024
SPREAD: Final = 3.0  # of the logits
LEAST_SAME: Final = 0.9  # of drawn tokens, beside the CPU's
ABOUT: Final = (
    "Microseconds for all rows together. *torch*: torch's operations on the device. *one read*: of the logits at a"
    " device copy's bandwidth. *as on the CPU*: tokens that a CPU draws alike from the same logits; *as torch*: that"
    " torch's operations on the device draw alike."
)


@dataclass(frozen=True)
class Kind:
    """How all rows of a batch are drawn."""

    name: str
    params: SamplingParams
    has_grammar: bool = False


ALL: Final = SamplingParams(max_tokens=1, temperature=1.0, top_k=40, top_p=0.9, min_p=0.05)
PLAIN: Final = SamplingParams(max_tokens=1, temperature=1.0)
PENALTIES: Final = LogitRules(
    frequency_penalty=0.5, presence_penalty=0.2, repetition_penalty=1.1, logit_bias=((5, 1.0),)
)
KINDS: Final = (
    Kind("greedy", replace(PLAIN, temperature=0.0)),
    Kind("plain", PLAIN),
    Kind("top-k 40", replace(PLAIN, top_k=40)),
    Kind("top-p 0.9", replace(PLAIN, top_p=0.9)),
    Kind("top-k, top-p, min-p", ALL),
    Kind("plain, penalties", replace(PLAIN, rules=PENALTIES)),
    Kind("plain, 5 logprobs", replace(PLAIN, logprobs=LogprobsAsked(num_top=5))),
    Kind("plain, grammar", PLAIN, has_grammar=True),
)


@dataclass(frozen=True)
class Size:
    """What is drawn. The first batches matter most."""

    vocab_size: int
    batches: tuple[int, ...]
    num_checked: int  # rows that the CPU draws, too
    count: int  # draws in a row
    rounds: int
    part_s: float


SIZES: Final = {
    "cuda": Size(QWEN3_8B["vocab_size"], (32, 256, 1), num_checked=32, count=6, rounds=5, part_s=8),
    "cpu": Size(TINY["vocab_size"], (3, 1), num_checked=3, count=2, rounds=2, part_s=30),
}


def measure_sampler(sheet: StepSheet, device: str) -> None:
    """Runs the step `sampler`."""
    size, where = SIZES[device], torch.device(device)
    limits = measured_limits(where)
    torch.manual_seed(0)
    logits_LV = SPREAD * torch.randn(max(size.batches), size.vocab_size, device=where)
    sheet.note(
        f"vocabulary {size.vocab_size:,}, contexts of {CONTEXT:,} tokens, random float32 logits that stay in place;"
        f" {limits.words}"
    )
    for kind in KINDS:
        sheet.part(kind.name, size.part_s, partial(_one, sheet, size, limits, kind, logits_LV))


class Drawing:
    """A batch whose rows draw their next tokens again and again."""

    def __init__(self, kind: Kind, logits_LV: Tensor, draws: Draws | None = None) -> None:
        """Row i has the same parameters, context and grammar in every batch and on every device. `draws`: see
        sample_scored."""
        batch, vocab_size = logits_LV.shape
        device, generator = logits_LV.device, torch.Generator().manual_seed(1)
        self.logits_LV, self._draws = logits_LV, draws
        asked = [Draw(row + 1, 1, 0, replace(kind.params, seed=row), until=0) for row in range(batch)]
        self.columns = SamplingColumns.of(asked, device)
        self.seq_lens = np.full(batch, CONTEXT, dtype=np.int64)
        self.seq_lens_B = torch.full((batch,), CONTEXT, device=device)

        self.allowed: AllowedTokens | None = None
        if kind.has_grammar:
            words_NW = torch.randint(-(2**31), 2**31, (batch, -(-vocab_size // 32)), generator=generator)
            self.allowed = AllowedTokens(torch.arange(batch, device=device), words_NW.int().to(device))
        self.rows_L = torch.arange(1, batch + 1, device=device)
        self._histories = Histories(batch + 1, device)
        at_S = torch.arange(CONTEXT).repeat(batch)
        tokens_S = torch.randint(vocab_size, (batch * CONTEXT,), generator=generator)
        rows_S = torch.arange(1, batch + 1).repeat_interleave(CONTEXT)
        rules = self.columns.input(self.seq_lens_B, self.seq_lens).rules
        self._histories.begin(rules, torch.stack((rows_S, at_S, tokens_S)).to(device))

    def draw(self) -> Tensor:
        """The tokens, as a launch without a draft draws them (PlainLaunches.sample)."""
        sampling = replace(self.columns.input(self.seq_lens_B, self.seq_lens), allowed=self.allowed)
        history_NT = self._histories.begin(sampling.rules, None)
        sampled: Sampled = sample_scored(self.logits_LV, sampling, history_NT, self._draws)
        if history_NT is not None:
            self._histories.write(self.rows_L, sampling.position_L, sampled.tokens_L)
        return sampled.tokens_L


@torch.inference_mode()
def _one(sheet: StepSheet, size: Size, limits: Limits, kind: Kind, logits_LV: Tensor) -> None:
    wanted: list[int] = Drawing(kind, logits_LV[: size.num_checked].cpu()).draw().tolist()
    for batch in size.batches:
        drawing, plain = Drawing(kind, logits_LV[:batch]), Drawing(kind, logits_LV[:batch], TorchDraws())
        drawn: list[int] = drawing.draw().tolist()
        same, num_checked = num_same(drawn, wanted), min(batch, len(wanted))
        same_as_torch = num_same(drawn, plain.draw().tolist())
        spent, by_torch = (
            launched(side.draw, size.count, size.rounds, limits, logits_LV.device) for side in (drawing, plain)
        )
        read_s = drawing.logits_LV.nbytes / limits.copy_bytes_s
        cells: dict[str, Value] = {"draw": kind.name, "batch": batch, "device": spent.device_s * 1e6}
        cells |= {"host": spent.host_s * 1e6, "torch": by_torch.device_s * 1e6, "torch, host": by_torch.host_s * 1e6}
        cells |= {
            "torch / ours": by_torch.device_s / spent.device_s,
            "one read": read_s * 1e6,
            "device / one read": spent.device_s / read_s,
        }
        cells |= {"as on the CPU": f"{same} of {num_checked}", "as torch": f"{same_as_torch} of {batch}"}
        sheet.row("A draw", cells, ABOUT)

        where = f"{kind.name}, batch {batch}"
        if is_wrong(same, num_checked, is_exact=kind.params.temperature == 0):
            sheet.fault(f"{where}: only {same} of {num_checked} tokens are those of the CPU")
        if reason := why_it_waits(drawing.draw, logits_LV.device):
            sheet.fault(f"{where}: the host waits for the device: {reason}")


def num_same(drawn: Sequence[int], wanted: Sequence[int]) -> int:
    """How many of the first rows draw the wanted token. Either may have more rows."""
    return sum(ours == theirs for ours, theirs in zip(drawn, wanted, strict=False))


def is_wrong(same: int, count: int, *, is_exact: bool) -> bool:
    """Whether too few tokens are those of the CPU. Greedy tokens are exact."""
    return same < (count if is_exact else LEAST_SAME * count)
