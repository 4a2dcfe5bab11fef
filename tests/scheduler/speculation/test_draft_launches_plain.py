"""Launches without a draft of an executor that has one: while the draft rests, and of rows that began meanwhile."""

import random
from typing import Any

import pytest

from scheduler.execution.executor import Executor
from scheduler.execution.launch import Launch
from scheduler.execution.launches import PlainLaunch
from scheduler.plan import Operation, Plan, WriteDraft
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from tests.explore.proposals import Proposals
from tests.scheduler.building import ManualStream, admitted, decode, drawn, finish, greedy, prompt_chunk
from tests.scheduler.speculating import CHAIN, MODEL, PROMPT, STEPS, Tree, begun, rest, speculating, stepping

TREE: Tree = (2, 6)


class Watched:
    """An executor's launches, and what its planner gives it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tree: Tree = CHAIN) -> None:
        self.stream = ManualStream()
        self.executor, self.planner = speculating(self.stream, tree=tree)
        self.launches, self.operations = list[Launch](), list[Operation]()
        enqueue, submit = self.executor.launcher.enqueue, self.planner.steps._submit

        def enqueued(*args: Any) -> Launch:
            self.launches.append(enqueue(*args))
            return self.launches[-1]

        def submitted(operation: Operation) -> None:
            self.operations.append(operation)
            submit(operation)

        monkeypatch.setattr(self.executor.launcher, "enqueue", enqueued)
        monkeypatch.setattr(self.planner.steps, "_submit", submitted)

    @property
    def plain(self) -> list[bool]:
        """Of each launch, whether it is one without a draft."""
        return [isinstance(launch, PlainLaunch) for launch in self.launches]

    def rest(self, rests: bool = True) -> None:
        if rests:
            rest(self.planner)
        else:
            self.planner.speculation.rests = False


def take(planner: Planner, executor: Executor) -> None:
    """Runs the oldest launch. A choice that has ended takes no token more."""
    _, result = finish(planner, executor)
    assert not result.error
    for req, run in drawn(planner, result).items():
        if req.finish is None:
            req.append(run)


def run(planner: Planner, executor: Executor, count: int) -> None:
    for _ in range(count):
        decode(planner)
        take(planner, executor)


def ended(planner: Planner, executor: Executor, *reqs: Req) -> None:
    """All of these are decoded to their ends, two launches at a time."""
    decode(planner)
    while any(req.finish is None for req in reqs):
        decode(planner)
        take(planner, executor)
    take(planner, executor)


def test_rows_of_a_rest_are_launched_as_without_a_draft_and_never_propose(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    planner, executor = watched.planner, watched.executor
    stepping(monkeypatch, planner, 0, 0, 0, STEPS)
    Proposals(planner, MODEL)
    watched.rest()
    req = begun(planner)
    take(planner, executor)
    run(planner, executor, 2)
    assert watched.plain == [True] * 3 and executor.running.spec_info is None

    watched.rest(False)
    other = begun(planner, (5, 6, 7), name="other")
    assert not req.held.has_draft and other.held.has_draft
    ended(planner, executor, req, other)
    assert watched.plain[:3] == [True] * 3 and not any(watched.plain[3:]), "one of the rows has a draft"
    assert req.outputs == MODEL.expected_tokens(PROMPT, 30)
    assert other.outputs == MODEL.expected_tokens((5, 6, 7), 30)


@pytest.mark.parametrize("tree", [CHAIN, TREE])
def test_a_rest_takes_the_drafts_of_all_rows_behind_what_waits_to_be_written(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch, tree)
    planner, executor = watched.planner, watched.executor
    stepping(monkeypatch, planner, 0, STEPS, 0, 0, 0, STEPS)
    proposals, req = Proposals(planner, MODEL), begun(planner)
    take(planner, executor)
    run(planner, executor, 3)
    watched.rest()
    run(planner, executor, 1)
    assert not req.held.has_draft and watched.plain == [False] * 4 + [True]
    assert [type(operation) for operation in watched.operations[-2:]] == [WriteDraft, Plan]
    assert not executor.running.members.any_drafts

    watched.rest(False)
    other, num_kept = begun(planner, (5, 6, 7), name="other"), proposals.num_kept
    ended(planner, executor, req, other)
    assert req.outputs == MODEL.expected_tokens(PROMPT, 30) and proposals.num_kept > num_kept


@pytest.mark.parametrize("tree", [CHAIN, TREE])
@pytest.mark.parametrize("seed", range(6))
def test_rests_change_no_token(seed: int, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that proposes is in flight when a rest begins, and a row may end in it."""
    watched, rng = Watched(monkeypatch, tree), random.Random(seed)
    planner, executor = watched.planner, watched.executor
    proposals = Proposals(planner, MODEL, varied=seed)
    prompts, reqs = {f"r{number}": tuple(range(number, number + 5)) for number in range(12)}, list[Req]()
    waiting = list(prompts.items())
    while waiting or any(req.finish is None for req in reqs):
        if waiting and rng.random() < 0.3 and planner.kv_manager.rows.num_free:
            name, prompt = waiting.pop()
            reqs.append(admitted(planner, prompt, greedy(rng.randrange(1, 30)), name))
            planner.launch(prompt_chunk(reqs[-1]), planner.decodes())
            planner.join([reqs[-1]])
        else:
            decode(planner)
        while len(planner.in_flight) > rng.randrange(2):
            take(planner, executor)
        for req in reqs:
            if req.finish is not None and req.holding is not None:
                planner.release(req)
        planner.collect()
    for req in reqs:
        assert req.outputs == MODEL.expected_tokens(prompts[req.request_id], req.sampling.max_tokens)
    assert proposals.num_rests > 0 and any(watched.plain) and not all(watched.plain)
