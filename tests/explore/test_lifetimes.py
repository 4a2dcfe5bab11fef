"""Whole workloads with a draft under the race detector: no memory is given back while a launch may still read it.

Launches that propose nothing leave tokens to the draft (speculation/unwritten.py). Their inputs are read by a later
launch, which drops them. Only the names of the first launch keep the memory until the second one has run.
"""

from dataclasses import replace

import pytest
from torch import Tensor

from scheduler.execution.batches import Relay
from scheduler.execution.launch import Launch
from scheduler.speculation.draft_launches import DraftLaunch
from scheduler.speculation.unwritten import Unwritten
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import ScheduleViolation
from tests.explore.exploring import STRATEGIES
from tests.explore.run import Run
from tests.explore.workload import Workload
from tests.selecting import first

SEED = 26  # a prefill and a decode worker
in_any_order = pytest.mark.parametrize("strategy", [Strategy.LATE, Strategy.RANDOM])


def run_of(strategy: Strategy, tree: tuple[int, int]) -> Run:
    """How much the launches propose varies, and is often nothing."""
    workload = replace(Workload.random(SEED).with_draft(SEED), num_steps=2, varied_steps=SEED, tree=tree)
    return Run(workload, strategy, SEED, detect=True)


@in_any_order
@pytest.mark.parametrize("tree", [(1, 0), (2, 7)], ids=["chain", "tree"])
def test_what_a_draft_has_still_to_read_lives_until_it_is_read(
    tree: tuple[int, int], strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_waiting, write = list[int](), Unwritten.write

    def counted(self: Unwritten, *args: object) -> None:
        num_waiting.append(len(self._tokens))
        write(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Unwritten, "write", counted)
    run_of(strategy, tree).run()
    assert max(num_waiting) > 1, "no launch left tokens to the draft"


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(2, range(30, 54), num_broad=8))
def test_workloads_with_a_draft_give_no_memory_back_too_early(seed: int) -> None:
    """Chains, trees and drafts of several layers, in all topologies."""
    run = Run(Workload.random(seed).with_draft(seed), STRATEGIES[seed % len(STRATEGIES)], seed, detect=True).run()
    assert run.simulation.detector is not None and run.simulation.detector.num_seen > 500


@in_any_order
@pytest.mark.parametrize("changed", [Launch, DraftLaunch])
def test_a_launch_that_does_not_name_its_inputs_is_noticed(
    changed: type[Launch], strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tensors(launch: Launch) -> tuple[Tensor, ...]:
        relay: Relay = launch.relay
        return relay if changed is Launch else Launch.tensors.fget(launch)  # type: ignore[attr-defined]

    monkeypatch.setattr(changed, "tensors", property(tensors))
    with pytest.raises(ScheduleViolation, match=r"(?s)is given back while it may still be used.*unwritten\.py"):
        run_of(strategy, (1, 0)).run()
