"""The order of those that wait: preempted ones, then priority and age, then arrival or the longest cached prefix."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages_gateway import FIRST_PRIORITY, LAST_PRIORITY
from runtime.waiting_line import LEVEL_S, NEAR, NEAR_LEVELS, WaitingLine
from tests.counting import instructions


@dataclass(eq=False)
class Waiting:
    """A request, and how much of it is cached."""

    name: str
    cached: int = 0


def drain(line: WaitingLine[Waiting]) -> str:
    names = ""
    while (first := line.first()) is not None:
        assert first in line
        names += first.name
        line.remove(first)
        assert first not in line
    assert len(line) == 0
    return names


def test_equals_are_served_as_they_come() -> None:
    line = WaitingLine[Waiting]()
    for place, name in enumerate("abcd"):
        line.add(Waiting(name), place / 2)
    assert "".join(each.name for each in line) == "abcd"
    assert drain(line) == "abcd"


def test_those_that_were_preempted_come_first_and_in_their_order() -> None:
    line = WaitingLine[Waiting]()
    line.add(Waiting("n"), 0.0, FIRST_PRIORITY)
    for name, priority in (("a", 5), ("b", -5), ("c", 0)):
        line.add(Waiting(name), 9.0, priority, resumes=True)
    assert drain(line) == "abcn"


def test_a_smaller_priority_is_earlier() -> None:
    line = WaitingLine[Waiting]()
    for name, priority in (("c", 7), ("b", 0), ("a", -1), ("d", 7)):
        line.add(Waiting(name), 1.0, priority)
    assert drain(line) == "abcd"


@pytest.mark.parametrize("level_s", [LEVEL_S, 0.25])
def test_a_level_is_worth_so_many_seconds_of_waiting(level_s: float) -> None:
    line = WaitingLine[Waiting](level_s=level_s)
    line.add(Waiting("o"), 100.0, 3)
    line.add(Waiting("a"), 100.0 + 2.5 * level_s, 0)
    line.add(Waiting("z"), 100.0 + 3.5 * level_s, 0)
    assert drain(line) == "aoz"


def test_nobody_starves() -> None:
    """The last in priority is served although each second two of the first in priority come and only one is served."""
    line, poor = WaitingLine[Waiting](), Waiting("poor")
    line.add(poor, 0.0, LAST_PRIORITY)
    longest_s = LEVEL_S * (LAST_PRIORITY - FIRST_PRIORITY)
    for second in range(1000):
        for _ in range(2):
            line.add(Waiting("rich"), float(second), FIRST_PRIORITY)
        first = line.first()
        assert first is not None
        if first is poor:
            break
        line.remove(first)
    assert longest_s < second <= 2 * longest_s + 1, "when those have been served that came in that time"


ACTS = st.lists(st.tuples(st.sampled_from("aaar"), st.integers(-3, 3), st.booleans(), st.integers(0, 30)), max_size=40)


@given(ACTS)
def test_the_first_one_is_the_first_of_all(acts: list[tuple[str, int, bool, int]]) -> None:
    line, places, now = WaitingLine[Waiting](), dict[Waiting, tuple[bool, float, int]](), 0.0
    for number, (act, priority, resumes, which) in enumerate(acts):
        if act == "a":
            now += which / 10
            request = Waiting(str(number))
            line.add(request, now, priority, resumes=resumes)
            places[request] = not resumes, 0.0 if resumes else now + LEVEL_S * priority, number
        elif places:
            request = sorted(places, key=lambda each: each.name)[which % len(places)]
            line.remove(request)
            line.remove(request)
            del places[request]
        assert line.first() is min(places, key=places.__getitem__, default=None)
        assert len(line) == len(places) and list(line) == sorted(places, key=places.__getitem__)


def by_prefix() -> WaitingLine[Waiting]:
    return WaitingLine(lambda each: each.cached)


def test_of_those_that_came_together_the_longest_cached_prefix_is_first() -> None:
    line = by_prefix()
    for name, cached in (("c", 0), ("a", 64), ("b", 32), ("d", 0)):
        line.add(Waiting(name, cached), 1.0)
    assert drain(line) == "abcd"


def test_a_cached_prefix_passes_neither_age_nor_priority_nor_who_was_preempted() -> None:
    line = by_prefix()
    line.add(Waiting("b"), 1.0)
    line.add(Waiting("c", cached=99), 1.0 + NEAR_LEVELS * LEVEL_S)
    line.add(Waiting("d", cached=999), 1.0, priority=2 * NEAR_LEVELS)
    line.add(Waiting("a"), 1.0, resumes=True)
    assert drain(line) == "abcd"


def test_prefixes_are_compared_only_among_those_of_the_same_priority() -> None:
    line = by_prefix()
    for name, cached, priority in (("c", 64, 0), ("a", 8, -1), ("d", 0, 0), ("b", 0, -1)):
        line.add(Waiting(name, cached), 1.0, priority)
    assert drain(line) == "abcd"


def test_few_are_looked_up_and_only_when_the_line_changes() -> None:
    asked: list[str] = []

    def cached(request: Waiting) -> int:
        asked.append(request.name)
        return request.cached

    line = WaitingLine[Waiting](cached)
    for place in range(2000):
        line.add(Waiting(str(place), cached=place), 1.0)
    first = line.first()
    assert first is not None and first.name == str(NEAR - 1)
    assert len(asked) == NEAR
    assert line.first() is first and len(asked) == NEAR
    line.add(Waiting("new", cached=10_000), 1.0)
    assert line.first() is first and len(asked) == 2 * NEAR
    line.remove(next(iter(line)))
    assert line.first() is first and len(asked) == 2 * NEAR


@pytest.mark.parametrize("line", [WaitingLine[Waiting](), by_prefix()], ids=["fcfs", "lpm"])
def test_its_cost_does_not_depend_on_how_many_wait(line: WaitingLine[Waiting]) -> None:
    costs: list[int] = []
    for num_waiting in (20, 2000):
        for place in range(num_waiting):
            line.add(Waiting(str(place)), float(place % 7))
        some = next(iter(line))

        def turn(some: Waiting = some) -> None:
            line.remove(some)
            line.add(some, 0.0)
            line.first()

        costs.append(instructions(turn))
    assert costs[0] == costs[1] > 0
