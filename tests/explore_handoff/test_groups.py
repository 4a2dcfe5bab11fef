"""Groups of ranks on either side of the hand-over: no wrong token, no rank apart from others, nobody waits for ever."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.messages_gateway import Role
from scheduler.agreement import Agreement
from tests.explore_handoff.exploring import explore_seed, explored
from tests.explore_handoff.ledger import check_gateway
from tests.explore_handoff.scenario import FIRST_S, FIRST_WITH_GROUPS, KINDS, Scenario
from tests.explore_handoff.workers import WorkerProcess
from tests.explore_handoff.world import World
from tests.selecting import first
from worker.group_watch import SILENCE_S

WORLDS = 40  # fewer miss rare events
DONE = {  # by name in a story; each must really happen
    "group ended", "group broken", "killed", "paused", "launch fails", "launch hangs", "leaving", "control cut",
    "peer cut", "data cut", "parted", "frame lost", "frame twice", "gateway killed", "retracted", "leaves", "flush",
}  # fmt: skip
HURT_AT = FIRST_S + 0.3
Hurt = Callable[[World, WorkerProcess], None]


def test_a_world_with_groups() -> None:
    assert explored(0, groups=True).outcomes["done"] > 0


@pytest.mark.slow
def test_a_world_of_each_kind_with_groups() -> None:
    happened: Counter[str] = Counter()
    for seed in range(len(KINDS)):
        happened += explored(seed, groups=True).happened
    assert happened["group ended"] > 2 and happened["killed"] and happened["paused"]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_forty_worlds_with_groups() -> None:
    num_handoffs = 0
    outcomes: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    for seed in range(1000, 1000 + WORLDS):
        found = explored(seed, groups=True)
        num_handoffs += found.num_handoffs
        outcomes += found.outcomes
        happened += found.happened
    assert outcomes["done"] > 0.7 * num_handoffs > 5 * WORLDS
    assert not DONE - set(happened), "the exploration has lost its point"


def test_some_worlds_have_groups_on_either_side_and_most_have_none() -> None:
    shapes = Counter(_shape(Scenario.random(seed)) for seed in range(FIRST_WITH_GROUPS, FIRST_WITH_GROUPS + 400))
    assert shapes["none"] == 300 and min(shapes["prefill"], shapes["decode"], shapes["both"]) > 20
    assert all(_shape(Scenario.random(seed)) == "none" for seed in range(FIRST_WITH_GROUPS))


def _shape(world: Scenario) -> str:
    sides = bool(world.prefill_ranks), bool(world.decode_ranks)
    return {(False, False): "none", (True, False): "prefill", (False, True): "decode"}.get(sides, "both")


# ---- one fault at a time: how the group ends, and that it serves again ----


def killed(world: World, rank: WorkerProcess) -> None:
    """Its peers see it."""
    world.kill(rank, 0.2, silently=False)


def silent(world: World, rank: WorkerProcess) -> None:
    """It is stopped for longer than the others wait."""
    rank.pause(3 * SILENCE_S)


def failing(world: World, rank: WorkerProcess) -> None:
    """Its next forward raises."""
    rank.fails_next = True


def hanging(world: World, rank: WorkerProcess) -> None:
    """Its next launch never enters its collectives."""
    rank.forward.hangs = True


HURTS: dict[Hurt, str] = {  # what a rank then ends with
    killed: "its group has lost a rank: worker",
    silent: "has been silent for",
    failing: "step [0-9]+ has failed: a failure for the test",
    hanging: "rank 1 is in no collective of step",
}


@pytest.mark.slow
@pytest.mark.parametrize("hurt", HURTS, ids=lambda hurt: hurt.__name__)
@pytest.mark.parametrize("role", first(1, [Role.DECODE, Role.PREFILL]))
def test_a_hurt_rank_ends_its_group_which_serves_again_under_the_next_epoch(role: Role, hurt: Hurt) -> None:
    """Nobody kills the other ranks before they have ended by themselves. Requests go on at the worker beside them."""
    world = World(calm(role))
    world.groups.killed_after_s = lambda: 2 * SILENCE_S
    before = [each for each in world.workers if each.group is not None]
    world.surroundings.agenda.at(HURT_AT, lambda: hurt(world, before[1]))
    world.run()

    assert world.story.happened["group ended"] == 1
    ends = [line.text for line in world.story._lines if line.text.startswith("ends: ")]
    assert len(ends) >= 1 and any(re.search(HURTS[hurt], end) for end in ends), ends
    after = [each for each in world.workers if each.group is not None]
    assert not any(each.alive for each in before) and len(after) == len(before) == 2
    assert {each.group.epoch for each in after if each.group} == {2}
    assert not [client.error for client in world.clients if client.error]


def calm(role: Role) -> Scenario:
    """Nothing goes wrong. A group of two ranks and a worker beside it have this role. Requests come for 2 s."""
    drawn = Scenario.random(0)
    world = replace(drawn.again_and_again(2), num_prefills=1, num_decodes=1, pairing="round_robin")
    num_prefill, num_decode = (2, 0) if role is Role.PREFILL else (0, 2)
    return replace(world, prefill_ranks=num_prefill, decode_ranks=num_decode, collective_s=2.0)


# ---- that a broken rule is noticed ----


def test_ranks_that_compute_different_sizes_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Agreement._settle

    def settled(agreement: Agreement) -> None:
        settle(agreement)
        if agreement.shape is not None and agreement.rank:
            wider = (agreement.shape.padded + 1,) * agreement.size
            agreement.shape = agreement.shape._replace(num_tokens=wider)

    monkeypatch.setattr(Agreement, "_settle", settled)
    said = explore_seed(0, groups=True).broken
    assert "enters gather" in said and "has entered gather" in said


def test_a_group_that_ends_without_a_reason_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.group_watch.SILENCE_S", 0.1)
    assert "nothing was done to its group, and it ends" in explore_seed(0, groups=True).broken


def test_half_a_group_at_the_gateway_is_noticed() -> None:
    world = World(calm(Role.DECODE))
    control = world.gateway.control
    world._until(FIRST_S)
    check_gateway(control)
    del control.membership._members["decode.1"]
    with pytest.raises(AssertionError, match=r"of group decode, only \{\(1, 2, 0\)\} are members"):
        check_gateway(control)
