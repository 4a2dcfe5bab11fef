"""Executors and planners with the fake draft, and requests that they decode."""

from itertools import chain, repeat

import pytest

from scheduler.draft_shape import DraftShape
from scheduler.execution.executor import Executor
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from scheduler.planning.speculation import Speculation
from tests.doubles.hash_model import FakeRunner
from tests.scheduler import building
from tests.scheduler.building import FailAt, ManualStream, drawn, finish, greedy, make_pair

STEPS = 3
MODEL = FakeRunner(vocab_size=97, context_length=64, draft_seed=1)
PROMPT = tuple(range(10))
Tree = tuple[int, int]  # top-k and nodes
CHAIN: Tree = (1, 0)


def speculating(stream: ManualStream, *failing: int, tree: Tree = CHAIN) -> tuple[Executor, Planner]:
    """An executor with the fake draft. The target's forwards `failing` fail, counted from 1."""
    runner = FakeRunner(vocab_size=97, context_length=64, draft_seed=1, before_forward=FailAt(*failing))
    return speculating_with(stream, runner, tree)


def speculating_with(stream: ManualStream, runner: FakeRunner, tree: Tree) -> tuple[Executor, Planner]:
    shape = DraftShape(STEPS, *tree)
    return make_pair(stream, runner=runner, shape=shape, speculation=Speculation(shape, 9))


def begun(planner: Planner, prompt: tuple[int, ...] = PROMPT, num_tokens: int = 30, name: str = "r") -> Req:
    """A request whose prompt is launched, and which decodes from the next launch on."""
    return building.begun(planner, prompt, greedy(num_tokens), name)


def take(planner: Planner, executor: Executor) -> None:
    """Runs the oldest launch and appends its tokens."""
    _, result = finish(planner, executor)
    assert not result.error
    for req, run in drawn(planner, result).items():
        req.append(run)


def stepping(monkeypatch: pytest.MonkeyPatch, planner: Planner, *num_steps: int) -> None:
    """Launches with rows that decode propose as many tokens as `num_steps` says, in turn, if there is a draft."""
    steps = chain(num_steps, repeat(num_steps[-1]))
    if planner.speculation is not None:
        monkeypatch.setattr(planner.speculation, "next_steps", lambda num_rows, *_: next(steps) if num_rows else 0)


def rest(planner: Planner) -> None:
    """The draft's rest begins with the next launch."""
    speculation, before = planner.speculation, planner.speculation.next_steps

    def next_steps(*asked: int) -> int:
        before(*asked)
        vars(speculation)["next_steps"], speculation.rests = before, True
        return 0

    vars(speculation)["next_steps"] = next_steps
