"""What the parts of a speculative launch cost beside a decode step, and the speed that follows. A chain of proposals.

A launch with s steps: s - 1 draft steps (the draft-extend before it made the first proposal), the verification of s + 1
tokens of each request, and the draft-extend over them.
Shapes: B requests, T rows of a forward, W tokens of each request, L wanted rows, E hidden.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Final

import torch

from bench.device_seconds import seconds_each
from model.draft import first_layer
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import Runner
from model.sampler import sample
from model.sampling_input import AskingRows, ParamColumns, SamplingInput
from testkit.inputs import decodes

PAGE_SIZE: Final = 16
WARM_UP: Final = 2  # calls of each part before the first round


@dataclass(frozen=True)
class Costs:
    """Microseconds at one batch size. Entry s - 1 of a tuple is that of s steps."""

    plain_us: float  # a decode step
    draft_us: float  # a draft step
    verify_us: tuple[float, ...]
    extend_us: tuple[float, ...]

    def launch_us(self, num_steps: int) -> float:
        """A launch; without steps, a decode step."""
        if not num_steps:
            return self.plain_us
        return (num_steps - 1) * self.draft_us + self.verify_us[num_steps - 1] + self.extend_us[num_steps - 1]

    def speed_up(self, lengths: Sequence[float], num_steps: int) -> float:
        """Tokens a second beside decode steps. `lengths[s - 1]`: the mean accepted length with s steps."""
        length = lengths[num_steps - 1] if num_steps else 1.0
        return length * self.plain_us / self.launch_us(num_steps)

    def best(self, lengths: Sequence[float]) -> int:
        """The fastest number of steps; 0: no speculation."""
        return max(range(len(lengths) + 1), key=lambda num_steps: self.speed_up(lengths, num_steps))


def geometric(acceptance: float, max_steps: int) -> list[float]:
    """The mean accepted lengths if each proposal is accepted with this probability."""
    return [sum(acceptance**index for index in range(num_steps + 1)) for num_steps in range(1, max_steps + 1)]


def greedy_rows(num_rows: int, device: torch.device) -> SamplingInput:
    """The sampler's input of that many greedy rows."""
    rows_L = torch.arange(num_rows, device=device)
    zeros_L, none_L = torch.zeros(num_rows, device=device), torch.zeros_like(rows_L)
    params = ParamColumns(zeros_L, none_L, torch.ones(num_rows, device=device), zeros_L, rows_L, none_L)
    return SamplingInput(params, AskingRows(None, None, None, True), rows_L, None)


def memory_for(runner: Runner, batch: int, context: int, max_steps: int) -> PagedKv:
    """KV memory in which `measure_costs` can measure."""
    layout = runner.kv_layout(PAGE_SIZE)
    return PagedKv(layout, 1 + batch * layout.num_pages(context + max_steps + 1), runner.device)


def measure_costs(
    runner: Runner,
    batch: int,
    context: int,
    max_steps: int,
    num_rounds: int,
    *,
    kv: PagedKv | None = None,
    in_a_row: int = 1,
) -> Costs:
    """Medians. Every part runs `in_a_row` times a round, so that a drift of the machine affects all. Each request has
    `context` tokens before the launch, and all are greedy. `kv`: that for which graphs were captured."""
    draft = runner.draft
    assert draft is not None, "the runner was loaded with a draft"
    kv = kv or memory_for(runner, batch, context, max_steps)
    inputs = [decode_rows(kv, batch, width, context, runner.config.vocab_size) for width in range(1, max_steps + 2)]
    features = [runner.forward_with_features(inp, kv)[1].clone() for inp in inputs]
    rows = [greedy_rows(batch * width, kv.device) for width in range(1, max_steps + 2)]
    firsts_B = torch.arange(batch, device=kv.device)
    ends = [replace(inp, logit_indices_L=firsts_B * (len(inp.slots_T) // batch)) for inp in inputs]

    def plain() -> None:
        sample(runner.forward(inputs[0], kv), rows[0])

    def verify(num_steps: int) -> None:
        logits_LV, _ = runner.forward_with_features(inputs[num_steps], kv)
        sample(logits_LV, rows[num_steps])

    def extend(num_steps: int) -> None:
        """Draft-extend and the proposal behind it; with one token of each request, a draft step."""
        logits_LV, _ = first_layer(draft, ends[num_steps], draft.fuse(features[num_steps]), kv)
        sample(logits_LV, rows[0])

    steps = range(1, max_steps + 1)
    parts: list[Callable[[], None]] = [
        plain,
        *(partial(extend, num) for num in (0, *steps)),
        *(partial(verify, num) for num in steps),
    ]
    times: list[list[float]] = [[] for _ in parts]
    for number in range(num_rounds):
        for of_part, part in zip(times, parts, strict=True):
            of_part += seconds_each(part, in_a_row, runner.device, 0 if number else WARM_UP)
    plain_us, draft_us, *others = (round(1e6 * median(of_part), 1) for of_part in times)
    return Costs(plain_us, draft_us, tuple(others[max_steps:]), tuple(others[:max_steps]))


def decode_rows(kv: PagedKv, batch: int, width: int, context: int, vocab_size: int) -> ModelInput:
    """The `width` tokens after `context` of each request, a decode row each: they share the request's pages."""
    tables_BP = torch.arange(1, kv.num_pages, device=kv.device).view(batch, -1)
    positions_T = context + torch.arange(width, device=kv.device).repeat(batch)
    ids_T = torch.arange(batch * width, device=kv.device) % vocab_size
    return decodes(ids_T, positions_T, tables_BP.repeat_interleave(width, dim=0), PAGE_SIZE)
