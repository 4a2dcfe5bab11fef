"""A launch that fails before the target's forward: the target computes padding in its place, as the other ranks of the
group expect, and the launch's own rows fail. One that fails within the forward of a group ends the group."""

import pytest
import torch

from protocol.errors import GroupBroken
from scheduler.execution.batches import ForwardBatch
from scheduler.execution.executor import Executor
from scheduler.execution.future_map import FutureMap
from scheduler.execution.shipping import Shipping
from scheduler.plan import Plan
from scheduler.planning.chunks import ExtendChunk
from scheduler.planning.planner import Planner
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import (
    MODEL,
    ManualStream,
    admitted,
    drawn,
    finish,
    greedy,
    make_executor,
    make_pair,
    prompt_chunk,
)
from tests.scheduler.grouped import Answered, Counting, failing_at, is_padding, pages_of, steps_of

FAULTS = {
    "its inputs cannot be built": (ForwardBatch, "init_new"),
    "it computes another number of tokens than it announced": (Plan, "num_tokens"),
    "what it ships cannot be prepared": (Shipping, "prepare"),
    "its tokens cannot be resolved": (FutureMap, "resolve_future"),
}
HONEST = Plan.num_tokens
groups = pytest.mark.parametrize("size", [1, 2])


def rank(counting: Counting) -> tuple[Executor, Planner]:
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=counting)
    agreement, clock = Answered(counting.size), VirtualClock(7.0)
    return make_pair(ManualStream(), runner=runner, agreement=agreement, forward_clock=clock)


def lies(self: Plan, width: int) -> int:
    """In the place of Plan.num_tokens: of a launch that ships two more than it has."""
    return HONEST(self, width) + 2 * self.ships


@groups
@pytest.mark.parametrize("fault", FAULTS)
def test_the_target_computes_padding_and_only_the_own_rows_fail(
    monkeypatch: pytest.MonkeyPatch, fault: str, size: int
) -> None:
    """The second of four launches: a row that decodes, and a chunk that ships. None of its layers may be sent."""
    counting = Counting(size=size)
    (executor, planner), (where, name) = rank(counting), FAULTS[fault]
    bad, late, good = (admitted(planner, (n, 2, 3), greedy(9), f"r{n}") for n in (1, 2, 3))
    planner.launch(prompt_chunk(bad))
    planner.join([bad])
    finish(planner, executor)
    pages = pages_of(executor.kv)
    with monkeypatch.context() as patched:
        wrong = lies if where is Plan else failing_at(1, getattr(where, name))
        patched.setattr(where, name, wrong)
        planner.launch(prompt_chunk(late), planner.decodes(), ships=True)
        planner.launch([ExtendChunk(good, 0, 3, (good,))], planner.decodes())
        launched, failed = finish(planner, executor)

    said = "AssertionError: 4 tokens, announced were 6" if wrong is lies else "RuntimeError: no memory"
    assert (failed.error, failed.rows, failed.computed_at) == (said, (), None) and not launched.layers
    assert torch.equal(pages_of(executor.kv), pages)
    assert is_padding(counting.inputs[1], 6 if wrong is lies else 4)

    planner.join([good])
    planner.launch((), planner.decodes())
    tokens = list[int]()
    for _ in range(2):
        _, result = finish(planner, executor)
        assert not result.error
        tokens += drawn(planner, result)[good]
    assert tokens == MODEL.expected_tokens((3, 2, 3), 2)
    counting.expect(4)
    assert executor.device.group_error is None


def test_padding_that_fails_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForwardBatch, "init_new", failing_at(1, ForwardBatch.init_new))
    executor, planner = rank(Counting(failing=(1,)))
    planner.launch()
    executor.device.forward.close()
    with pytest.raises(GroupBroken, match="step 1 has failed: forward 1 is broken"):
        executor.poll()
    assert str(executor.launches[0].error) == "no memory"  # what came first


def test_a_group_that_is_broken_already_is_named_as_it_was() -> None:
    """A collective has found that ranks differ: its own words go on."""

    def differ(_: object) -> None:
        raise GroupBroken("rank 1 is in the exchange of layer 3")

    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=differ)
    executor = make_executor(ManualStream(), runner=runner)
    steps_of(executor).submit(Plan(1))
    executor.device.forward.close()
    with pytest.raises(GroupBroken, match="rank 1 is in the exchange of layer 3"):
        executor.poll()


@groups
def test_sampling_that_fails_fails_the_launch_alone(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The collectives are behind it."""
    counting = Counting(size=size)
    executor, planner = rank(counting)
    monkeypatch.setattr(FutureMap, "stash", failing_at(1, FutureMap.stash))
    req, other = admitted(planner), admitted(planner, (3, 4, 5), name="other")
    planner.launch(prompt_chunk(req))
    planner.launch(prompt_chunk(other))
    (_, failed), (_, fine) = finish(planner, executor), finish(planner, executor)
    assert failed.error == "RuntimeError: no memory"
    assert drawn(planner, fine) == {other: tuple(MODEL.expected_tokens((3, 4, 5), 1))}
    counting.expect(2)
