"""Whatever happens between gateway, prefill and decode: no wrong token, no page lost, nobody waits for ever."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from protocol.messages_gateway import Role
from scheduler.execution.batches import ScheduleBatch
from scheduler.plan import Join
from scheduler.planning.overlap_loop import TOO_MANY
from scheduler.speculation.draft_rows import Seeds
from tests.explore_handoff.exploring import explore_seed, explored
from tests.explore_handoff.faults import KINDS
from tests.explore_handoff.scenario import FIRST_WITH_DRAFT, Scenario
from tests.explore_handoff.world import Violation, World
from tests.mutants.mutants import MUTANTS

WORLDS = 240
DONE = {  # by name in a story, what faults do; each must really happen
    "flush", "found at prefill", "found at decode", "retracted", "spilled", "refused", "overloaded",
    "leaves", "frame lost", "frame twice", "frame damaged", "lost", "full", "killed", "paused", "leaving", "parted",
    "slowed", "control cut", "peer cut", "data cut", "gateway paused", "gateway killed", "launch fails", "launch hangs",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(7))
def test_a_world_of_each_kind(seed: int) -> None:
    assert explored(seed).outcomes["done"] > 0


@pytest.mark.parametrize("seed", range(FIRST_WITH_DRAFT, FIRST_WITH_DRAFT + 4))
def test_a_world_with_a_draft(seed: int) -> None:
    assert explored(seed).num_handoffs


def test_a_world_notices_what_a_draft_should_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Seeds.of

    def spoilt(joins: Sequence[Join], device: torch.device) -> Seeds:
        seeds = real(joins, device)
        return replace(seeds, hidden_NE=torch.zeros_like(seeds.hidden_NE))

    monkeypatch.setattr(Seeds, "of", staticmethod(spoilt))
    worlds = ((seed, Scenario.random(seed)) for seed in range(FIRST_WITH_DRAFT, 99))
    seed = next(
        seed for seed, world in worlds if world.num_steps and not any(each.params.rules for each in world.arrivals)
    )
    assert "keeps 0 proposals behind" in explore_seed(seed).broken


def test_its_engines_check_what_debug_mode_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[ScheduleBatch] = []
    monkeypatch.setattr(ScheduleBatch, "check_mirrors", lambda batch: checked.append(batch))
    explore_seed(0)
    assert checked


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_worlds_that_notice_every_mutant(part: int) -> None:
    """As many as `make mutants` runs to find one."""
    most = max(mutant.worlds for mutant in MUTANTS) // 2
    for seed in range(part * most, (part + 1) * most):
        assert explored(seed).num_handoffs


@pytest.mark.full
@pytest.mark.timeout(1800)  # two minutes on an idle core
def test_many_worlds() -> None:
    num_handoffs = 0
    outcomes: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    for seed in range(1000, 1000 + WORLDS):
        found = explored(seed)
        num_handoffs += found.num_handoffs
        outcomes += found.outcomes
        happened += found.happened
    assert outcomes["done"] > 0.7 * num_handoffs > 5 * WORLDS
    assert not DONE - set(happened), "the exploration has lost its point"


@pytest.mark.parametrize("seed", (0, 7, 28))
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_worker_that_cannot_compute_ends_and_its_requests_go_elsewhere(role: Role, seed: int) -> None:
    """A calm world of two workers each, but for one whose every forward raises until it is another process."""
    calm = replace(Scenario.random(seed), num_prefills=2, num_decodes=2, pairing="round_robin")
    world = World(calm.again_and_again(3))
    victim = next(each for each in world.workers if each.role is role)
    victim.fails_always = True
    world.run()
    assert not victim.alive and world.story.happened["broken"] == 1
    assert victim.num_launch_failures >= TOO_MANY
    assert not [client.error for client in world.clients if client.error]
    assert world.num_retries >= TOO_MANY


def test_the_same_seed_gives_the_same_story() -> None:
    digests = []
    for seed in (0, 0, 7):
        world = World(Scenario.random(seed))
        world.run()
        digests.append(world.story.digest())
    assert digests[0] == digests[1] != digests[2]


def test_every_fault_is_drawn_by_some_scenario() -> None:
    drawn = {fault.kind for seed in range(300) for fault in Scenario.random(seed).faults}
    assert drawn == set(KINDS)


def test_a_broken_rule_is_told_as_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    def delivers_too_early(self: object, header: object, payload: object) -> None:
        raise AssertionError("the rule that is broken")

    monkeypatch.setattr("transfer.landing.transfer.ReceiveTransfer._take_last", delivers_too_early)
    with pytest.raises(Violation) as caught:
        World(Scenario.random(0)).run()
    lines = str(caught.value).splitlines()
    assert "the rule that is broken" in lines[0]
    assert any("-> decode-0#2" in line and "the last frame" in line for line in lines)
    assert any("PrefillJob(request_id=" in line for line in lines)
