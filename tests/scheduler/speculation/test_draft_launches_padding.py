"""A launch with a draft that fails before the target's forward: the target computes padding in its place, as the other
ranks of the group expect, and the launch's own rows fail. Behind the forward, they fail, too, and nobody else."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from model.paged_kv import PagedKv
from protocol.errors import GroupBroken
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.batches import ForwardBatch
from scheduler.execution.executor import Executor
from scheduler.execution.future_map import FutureMap
from scheduler.execution.shipping import Shipping
from scheduler.plan import Chunk, Plan
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from scheduler.planning.speculation import Speculation
from scheduler.speculation.draft_launches import DraftLaunches
from scheduler.speculation.mode import AnyMode
from scheduler.speculation.unwritten import Unwritten
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import (
    ManualStream,
    admitted,
    decode,
    drawn,
    finish,
    greedy,
    make_executor,
    make_planner,
    prompt_chunk,
)
from tests.scheduler.grouped import Answered, Counting, failing_at, is_padding, pages_of
from tests.scheduler.speculating import MODEL, PROMPT, STEPS, begun, stepping, take

OTHER = (5, 6, 7)
CHAIN, TREE = DraftShape(STEPS), DraftShape(STEPS, 2, 7)


@dataclass(frozen=True)
class Mode:
    """How launches use the draft. `num_verified`: the tokens of a row that the target computes."""

    name: str
    num_layers: int
    shape: DraftShape
    num_steps: int
    num_verified: int

    def __str__(self) -> str:
        return self.name


PLAIN = Mode("no draft", 0, NO_DRAFT, 0, 1)
MODES = (
    Mode("chain", 1, CHAIN, STEPS, STEPS + 1),
    Mode("tree", 1, TREE, STEPS, 7),
    Mode("quiet", 1, CHAIN, 0, 1),
    Mode("quiet beside trees", 1, TREE, 0, 1),
    Mode("layers", 3, CHAIN, STEPS, STEPS + 1),
    Mode("layers that propose nothing", 3, CHAIN, 0, 1),
)
modes = pytest.mark.parametrize("mode", MODES, ids=str)
launches = pytest.mark.parametrize("mode", [PLAIN, *MODES], ids=str)
drafts = pytest.mark.parametrize("mode", [mode for mode in MODES if not mode.num_steps], ids=str)  # nobody decodes
groups = pytest.mark.parametrize("size", [1, 2])
# Where a name is; None: in the mode.
BEFORE = {
    "resolve_future": FutureMap,
    "prepare": Shipping,
    "write": Unwritten,
    "build": None,
    "propose": None,
    "extend": None,
}


def rank(mode: Mode, counting: Counting) -> tuple[Executor, Planner]:
    has_draft = mode is not PLAIN
    draft: dict[str, Any] = {"draft_seed": 1, "num_draft_layers": mode.num_layers} if has_draft else {}
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=counting, **draft)
    kv, clock, agreement = PagedKv(runner.kv_layout(4), 64), VirtualClock(7.0), Answered(counting.size)
    executor = make_executor(ManualStream(), runner=runner, kv=kv, shape=mode.shape, forward_clock=clock)
    speculation = Speculation(mode.shape, 9) if has_draft else None
    return executor, make_planner(executor, speculation=speculation, agreement=agreement)


def object_of(executor: Executor, mode: Mode) -> AnyMode:
    """The mode that the executor's launches have."""
    assert isinstance(executor.launcher, DraftLaunches)
    return executor.launcher._proposing if mode.num_steps else executor.launcher._quiet


def breaks(patched: pytest.MonkeyPatch, executor: Executor, mode: Mode, name: str) -> None:
    """The next call of `name` raises."""
    where: Any = ForwardBatch if mode is PLAIN else BEFORE[name] or type(object_of(executor, mode))
    name = "init_new" if mode is PLAIN else name
    patched.setattr(where, name, failing_at(1, getattr(where, name)))


@launches
def test_planner_and_executor_count_the_same_tokens(mode: Mode) -> None:
    """One announces them, the other computes them."""
    executor, _ = rank(mode, Counting())
    for num_steps in range(mode.shape.num_steps + 1):
        for num_rows, chunks in ((0, ()), (5, ()), (3, (Chunk(1, 0, (7, 8)), Chunk(2, 4, (9,))))):
            plan = Plan(1, num_decodes=num_rows, chunks=chunks, num_steps=num_steps)
            computed = executor.launcher.num_tokens(plan)
            assert computed == plan.num_tokens(mode.shape.num_verified(num_steps)) >= num_rows + 3 * bool(chunks)


def goes_on(planner: Planner, executor: Executor, bad: Req, good: Req) -> None:
    """The failed one leaves; the other, whose prompt is launched, has all its tokens."""
    planner.join([good])
    _, result = finish(planner, executor)
    assert not result.error
    good.append(drawn(planner, result)[good])
    planner.release(bad)
    planner.roster.remove(bad)
    while len(good.outputs) < 12:
        decode(planner)
        take(planner, executor)
    assert good.outputs == MODEL.expected_tokens(OTHER, 30)[: len(good.outputs)]


@groups
@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        pytest.param(mode, fault, id=f"{mode}-{fault}")
        for mode in MODES
        for fault in ("build", "resolve_future", "write", "propose")
        if fault != "write" or mode.num_steps  # others write behind the target, if they do
    ],
)
def test_the_target_computes_padding_and_only_the_own_rows_fail(
    monkeypatch: pytest.MonkeyPatch, fault: str, mode: Mode, size: int
) -> None:
    """The third launch, of one row that decodes. The next one is enqueued already, with another request beside it."""
    counting = Counting(size=size)
    executor, planner = rank(mode, counting)
    stepping(monkeypatch, planner, mode.num_steps)
    bad, good = begun(planner), admitted(planner, OTHER, greedy(30), "good")
    take(planner, executor)
    decode(planner)
    take(planner, executor)
    pages = pages_of(executor.kv)
    with monkeypatch.context() as patched:
        breaks(patched, executor, mode, fault)
        decode(planner)
        _, failed = finish(planner, executor)
    planner.launch(prompt_chunk(good), planner.decodes())

    assert (failed.error, failed.rows, failed.computed_at) == ("RuntimeError: no memory", (), None)
    assert is_padding(counting.inputs[2], mode.num_verified)
    assert torch.equal(pages_of(executor.kv), pages)
    goes_on(planner, executor, bad, good)
    counting.expect(len(counting.inputs))
    assert executor.device.group_error is None


@drafts
@pytest.mark.parametrize("fault", ["build", "resolve_future", "prepare"])
def test_no_layer_of_padding_is_reported(monkeypatch: pytest.MonkeyPatch, fault: str, mode: Mode) -> None:
    """A prompt that ships."""
    counting = Counting()
    executor, planner = rank(mode, counting)
    breaks(monkeypatch, executor, mode, fault)
    req = admitted(planner, PROMPT)
    planner.launch(prompt_chunk(req), relay=False, ships=True)
    launched, failed = finish(planner, executor)
    assert (failed.error, failed.hidden) == ("RuntimeError: no memory", ()) and not launched.layers
    assert is_padding(counting.inputs[0], len(PROMPT)) and not pages_of(executor.kv).any()
    counting.expect(1)


@groups
@modes
def test_a_draft_that_cannot_extend_fails_the_launch_alone(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, size: int
) -> None:
    """The target has computed its rows by then."""
    counting = Counting(size=size)
    executor, planner = rank(mode, counting)
    stepping(monkeypatch, planner, mode.num_steps)
    bad, good = begun(planner), admitted(planner, OTHER, greedy(30), "good")
    take(planner, executor)
    with monkeypatch.context() as patched:
        breaks(patched, executor, mode, "extend")
        decode(planner)
        _, failed = finish(planner, executor)
    planner.launch(prompt_chunk(good), planner.decodes())
    assert failed.error == "RuntimeError: no memory" and not is_padding(counting.inputs[1], mode.num_verified)
    goes_on(planner, executor, bad, good)
    counting.expect(len(counting.inputs))
    assert executor.device.group_error is None


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.num_layers == 1 and not mode.num_steps], ids=str)
def test_a_draft_that_cannot_write_behind_a_prompt_fails_the_launch_alone(
    monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    counting = Counting()
    executor, planner = rank(mode, counting)
    breaks(monkeypatch, executor, mode, "write")
    bad, good = begun(planner, PROMPT), admitted(planner, OTHER, greedy(30), "good")
    _, failed = finish(planner, executor)
    assert failed.error == "RuntimeError: no memory" and not is_padding(counting.inputs[0], len(PROMPT))
    planner.launch(prompt_chunk(good), planner.decodes())
    goes_on(planner, executor, bad, good)
    counting.expect(len(counting.inputs))
    assert executor.device.group_error is None


@launches
def test_a_failure_within_the_forward_of_a_group_ends_it(monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """Alone, it fails the launch."""
    for size in (1, 2):
        executor, planner = rank(mode, Counting((2,), size=size))
        stepping(monkeypatch, planner, mode.num_steps)
        begun(planner)
        take(planner, executor)
        decode(planner)
        executor.device.forward.close()
        if size > 1:
            with pytest.raises(GroupBroken, match="step 2 has failed: forward 2 is broken"):
                planner.poll()
        else:
            ((_, result),) = planner.poll()
            assert result.error == "RuntimeError: forward 2 is broken" and result.computed_at is None
            assert executor.device.group_error is None


@groups
@launches
def test_an_idle_launch_that_cannot_be_built_is_a_forward_too(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, size: int
) -> None:
    counting = Counting(size=size)
    executor, planner = rank(mode, counting)
    if planner.speculation is not None:
        monkeypatch.setattr(planner.speculation, "next_steps", lambda *_: mode.num_steps)
    breaks(monkeypatch, executor, mode, "build")
    planner.launch()
    planner.launch()
    assert [finish(planner, executor)[1].error for _ in range(2)] == ["RuntimeError: no memory", ""]
    assert is_padding(counting.inputs[0], 0)
    counting.expect(2)
