"""A rank of a group of two whose other rank is no process: it agrees at once, and enters every collective."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from model.inputs import ModelInput
from model.paged_kv import PagedKv
from protocol.messages_group import StepRow, StepShape
from scheduler.agreement import Agreement
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.plan import LayerWritten, Outcome, StepResult
from scheduler.planning.steps import Steps

OTHERS = 5  # tokens of the other rank in each step


class Answered(Agreement):
    """Rank 0 of two. The other one announces every step as soon as this one does, or before it: see `call`."""

    def __init__(self, size: int = 2) -> None:
        super().__init__(1, 0, size)

    def announce(self, num_tokens: int, *, wants_graph: bool = False) -> None:
        """Is answered."""
        super().announce(num_tokens, wants_graph=wants_graph)
        for rank in range(1, self.size):
            self.take(StepRow(self.epoch, self.step, rank, OTHERS))

    def call(self) -> None:
        """The other rank has work, and announces the next step."""
        self.take(StepRow(self.epoch, self.step, 1, OTHERS))


def steps_of(executor: Executor, size: int = 2, shape: DraftShape = NO_DRAFT) -> Steps:
    """Gives plans to the executor of rank 0, as its planner does."""
    return Steps(executor.submit, Answered(size), shape, executor.runner.max_graphed)


@dataclass(eq=False)
class Counting:
    """Stands in for Collectives, and enters them as a model does: called by each forward of the fake model, it gathers
    and exchanges once a layer. `failing`: forwards that raise instead, counted from 1."""

    failing: tuple[int, ...] = ()
    num_layers: int = 2
    size: int = 2
    rank: int = 0
    inputs: list[ModelInput] = field(default_factory=list)  # of each forward
    entered: list[tuple[int, str, tuple[int, ...]]] = field(default_factory=list)  # step, operation, shape

    def __call__(self, inp: ModelInput) -> None:
        """A forward of the target."""
        self.inputs.append(inp)
        if len(self.inputs) in self.failing:
            raise RuntimeError(f"forward {len(self.inputs)} is broken")
        step = inp.step
        assert step is not None and len(inp.input_ids_T) == step.num_tokens[self.rank]
        for _ in range(self.num_layers):
            self.exchange(self.gather(torch.zeros(step.padded, 1), step), step)

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """As if the others gave the same."""
        self.entered.append((step.step, "gather", tuple(own_PE.shape)))
        return own_PE.expand(self.size, *own_PE.shape)

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """As if the others gave the same."""
        self.entered.append((step.step, "exchange", tuple(parts_RPE.shape)))
        return parts_RPE

    def expect(self, num_steps: int) -> None:
        """Each of so many steps had one forward, which entered all its collectives."""
        steps = [inp.step.step for inp in self.inputs if inp.step is not None]
        assert steps == list(range(1, num_steps + 1)), steps
        names = [(step, name) for step, name, _ in self.entered]
        wanted = [(step, name) for step in steps for _ in range(self.num_layers) for name in ("gather", "exchange")]
        assert names == wanted, names


def of_ticket(outcomes: list[Outcome], ticket: int) -> list[Outcome]:
    """Those of one launch."""
    return [
        outcome for outcome in outcomes if isinstance(outcome, LayerWritten | StepResult) and outcome.ticket == ticket
    ]


def is_padding(inp: ModelInput, num_tokens: int) -> bool:
    """Whether a forward is of so many tokens that read and write page 0 alone, each another request's. Nobody wants
    their logits: each takes as much memory as the vocabulary is large."""
    numbers = (inp.input_ids_T, inp.positions_T, inp.slots_T, inp.page_table_BP)
    sizes = {len(tensor) for tensor in (*numbers, inp.seq_lens_B)}
    reads_nobody = not any(tensor.any() for tensor in numbers) and bool((inp.seq_lens_B == 1).all())
    decodes_only = inp.num_decodes == num_tokens and not inp.extend_lens and not len(inp.logit_indices_L)
    return sizes == {num_tokens} and decodes_only and reads_nobody


def fill(kv: PagedKv) -> None:
    """Lets every byte of it say where it is."""
    kv.device_bytes.copy_(torch.arange(kv.device_bytes.numel()) % 251)


def pages_of(kv: PagedKv) -> Tensor:
    """A copy of what all pages but the padding hold, byte by byte."""
    return torch.stack([kv.layer(layer)[1:].view(torch.uint8) for layer in range(kv.layout.num_layers)])


def futures_of(executor: Executor) -> tuple[dict[str, object], list[int], list[int]]:
    """All that the FutureMap of an executor holds: its attributes, and what is in its buffers."""
    held = executor.future_map
    return dict(vars(held)), held.output_tokens_buf.tolist(), held.new_seq_lens_buf.tolist()


def failing_at(which: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which raises instead the time `which`, counted from 1."""
    count = 0

    def called(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == which:
            raise RuntimeError("no memory")
        return call(*args, **options)

    return called
