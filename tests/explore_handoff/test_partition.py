"""A prefill worker and the decode workers cannot reach each other for 3 s. Within 10 s it carries its share again.

All times are those of the simulated world. tests/network/test_partition.py does it with processes.
"""

from dataclasses import replace

import pytest

from protocol.messages_gateway import Role
from runtime.settings import Pairing
from tests.explore_handoff.scenario import FIRST_S, Arrival, Fault, Scenario
from tests.explore_handoff.world import HELLO_S, World

PARTED_S, BACK_S = 3.0, 10.0
LAPS = 4  # a second each, of the calm world's requests: during the partition, and again when BACK_S have passed


def laps(calm: Scenario, begin: float) -> list[Arrival]:
    """The world's requests again and again, from `begin` on."""
    return [
        replace(each, name=f"{each.name} at {begin + lap:.0f}", at=each.at - FIRST_S + begin + lap, leaves_at=None)
        for lap in range(LAPS)
        for each in calm.arrivals
    ]


@pytest.mark.parametrize(
    "have_met,pairing", [(True, "prefix_aware"), (False, "round_robin")], ids=["have met", "greet in vain"]
)
def test_the_peer_carries_its_share_within_ten_seconds(have_met: bool, pairing: Pairing) -> None:
    assert PARTED_S > HELLO_S, "a greeting in this time gets no answer"
    calm = replace(Scenario.random(0), num_prefills=2, num_decodes=2, pairing=pairing, caches=(), flushes=())
    begin = FIRST_S + 2.0 if have_met else 0.0
    healed = begin + PARTED_S
    arrivals = (*laps(calm, FIRST_S), *laps(calm, healed + BACK_S))
    no_fault = (Fault(0.0, "slow", "s"),)  # else a world expects that nothing is tried twice
    world = World(replace(calm, arrivals=arrivals, faults=no_fault))
    away, other = (each for each in world.workers if each.role is Role.PREFILL)
    agenda, counts = world.surroundings.agenda, list[list[int]]()

    def part() -> None:
        for each in world.workers:
            if each.role is Role.DECODE:
                world.surroundings.network.weather.parted[frozenset((away.name, each.name))] = healed

    def count() -> None:  # all launches of a prefill worker have prompts
        counts.append([each.planner.num_launches for each in (away, other)])

    for moment, act in ((begin, part), (healed + BACK_S, count), (healed + BACK_S + LAPS, count)):
        agenda.at(moment, act)
    world.run()
    assert away.alive and other.alive, "nobody is given up"
    before, after = counts
    of_away, of_other = (now - then for then, now in zip(before, after, strict=True))
    assert of_away > 0.35 * (of_away + of_other), "it gets less than its share"
