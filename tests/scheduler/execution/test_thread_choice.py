"""Threads of small decodes: the choice from times, and the list of forwards that is timed."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from model.collectives import outside_steps
from model.cpu_products import Threads
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import DraftSource, ModelRunner, Runner
from protocol.errors import InternalError
from protocol.messages_group import StepShape
from scheduler.execution.streams import HostStream, InlineStream
from scheduler.execution.thread_choice import (
    ROUNDS,
    ROWS,
    ForwardTimes,
    alone_up_to,
    choose_threads,
    wake_beside_layers,
)
from testkit.checkpoints import make_checkpoint
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.drafts import make_draft


@pytest.mark.parametrize(
    "alone, together, expected",
    [
        ((1, 2, 5), (2, 3, 4), 4),
        ((1, 2, 3), (2, 3, 4), 16),
        ((3, 2, 3), (2, 3, 4), 0),
        ((1, 4, 3), (2, 3, 4), 1),
        ((2, 2, 2), (2, 2, 2), 16),
    ],
)
def test_one_thread_up_to_the_first_size_at_which_it_is_slower(
    alone: tuple[int, ...], together: tuple[int, ...], expected: int
) -> None:
    times = tuple(ForwardTimes(rows, a, t) for rows, a, t in zip(ROWS, alone, together, strict=True))
    assert alone_up_to(times) == expected
    assert alone_up_to(()) == 0


@dataclass
class Timed:
    """A runner whose forward takes 3 ms and a millisecond a row on one thread, else 8 ms; the first one a second."""

    threads: Threads
    clock: VirtualClock
    seen: list[tuple[int, StepShape | None]] = field(default_factory=list)
    fails: bool = False

    def forward(self, inp: ModelInput, kv: PagedKv) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("no memory")
        rows = inp.num_decodes
        self.seen.append((rows, inp.step))
        kv.layer(0)[0].fill_(7)
        alone = self.threads.for_rows(rows) == 1
        self.clock.advance(1.0 if len(self.seen) == 1 else 0.003 + rows * 0.001 if alone else 0.008)
        return torch.zeros(rows, 1)


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_list_of_fixed_length_is_timed(num_ranks: int) -> None:
    threads, clock = Threads(), VirtualClock()
    runner, kv = Timed(threads, clock), PagedKv(FakeRunner().kv_layout(4), 3)
    times = choose_threads(runner, threads, kv, InlineStream(), clock, num_ranks)  # type: ignore[arg-type]
    assert threads.alone_up_to == 4 and [timed.rows for timed in times] == list(ROWS)
    assert [round(timed.alone_s * 1e3) for timed in times] == [4, 7, 19]
    assert [round(timed.together_s * 1e3) for timed in times] == [8, 8, 8]
    assert runner.seen == [(rows, outside_steps(num_ranks, rows)) for rows in ROWS for _ in range(2 * ROUNDS)]
    assert not kv.layer(0)[0].any(), "page 0 holds zeros again"


def test_a_forward_that_fails() -> None:
    threads, clock = Threads(), VirtualClock()
    runner, kv = Timed(threads, clock, fails=True), PagedKv(FakeRunner().kv_layout(4), 3)
    with pytest.raises(InternalError, match="a forward at the start has failed: no memory"):
        choose_threads(runner, threads, kv, InlineStream(), clock)  # type: ignore[arg-type]
    assert threads.alone_up_to == 0


def test_a_model(tmp_path: Path) -> None:
    runner = ModelRunner.load(make_checkpoint(tmp_path / "m", "qwen3"), device="cpu", dtype="bfloat16")
    kv = PagedKv(runner.kv_layout(16), 2)
    times = choose_threads(runner, runner.threads, kv, InlineStream(), VirtualClock())
    assert runner.threads.alone_up_to == max(ROWS) and {timed.alone_s for timed in times} == {0.0}
    assert not kv.layer(0).any()


@pytest.mark.parametrize("kind", ["layers at once", "one by one", "draft at once", "draft one by one", "no model"])
def test_the_loop_is_woken_beside_layers_that_run_at_once(kind: str, tmp_path: Path) -> None:
    folder, source = make_checkpoint(tmp_path / "m", "qwen3"), None
    if kind.startswith("draft"):
        source = DraftSource("eagle", make_draft(tmp_path / "draft", folder, "eagle", "qwen3"))
    model = ModelRunner.load(folder, device="cpu", dtype="bfloat16", draft=source)
    if model.decoder.at_once is None:
        pytest.skip("this CPU has no instructions for the products")
    runner: Runner = FakeRunner() if kind == "no model" else model
    if kind == "one by one":
        runner = replace(model, decoder=replace(model.decoder, at_once=None))
    elif kind == "draft one by one":
        assert model.draft is not None and model.draft.at_once
        runner = replace(model, draft=replace(model.draft, at_once=()))
    stream = HostStream("forward")
    wake_beside_layers(runner, stream)
    stream.close()
    assert stream.tells_late == (model.threads.before_long_call == stream.tell) == kind.endswith(" at once")
