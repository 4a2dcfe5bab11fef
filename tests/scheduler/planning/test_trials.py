"""Which way launches go, and how often the other one is tried; and what the whole policy makes of simulated costs."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from scheduler.draft_shape import DraftShape
from scheduler.planning.launch_costs import PLAIN, StepCosts
from scheduler.planning.speculation import Speculation
from scheduler.planning.trials import FIRST_WAIT, LONGEST_WAIT, MARGIN, SETTLE, TRIAL, Rates, Trials
from tests.doubles.clock import VirtualClock

STEPS = 4
AT_START = StepCosts((1, 32), ((1.0, 1.3, 1.5, 1.7, 1.9), (4.0, 6.0, 8.0, 10.0, 12.0)))


def ways(trials: Trials, rates: Rates, count: int) -> list[bool]:
    return [trials.next(rates) for _ in range(count)]


def test_a_way_that_was_never_timed_is_tried_soon_and_once() -> None:
    """Also if its launches cannot be timed."""
    trials, rates = Trials(), Rates(2.0, 1.0, quiet_known=False)
    ways_taken = ways(trials, rates, FIRST_WAIT)
    assert ways_taken == [True] * SETTLE + [False] * TRIAL + [True] * (FIRST_WAIT - SETTLE - TRIAL)


@pytest.mark.parametrize("proposes", [True, False])
def test_a_way_that_loses_is_tried_ever_more_rarely(proposes: bool) -> None:
    trials, rates = Trials(proposes), Rates(2.0 if proposes else 0.5, 1.0, True)
    ways_taken = ways(trials, rates, 12 * LONGEST_WAIT)
    begins = [at for at, (before, now) in enumerate(pairwise(ways_taken)) if before == proposes != now]
    waits = [end - start - TRIAL for start, end in pairwise(begins)]
    assert waits == [2 * min(FIRST_WAIT << trial, LONGEST_WAIT) for trial in range(len(waits))] and len(waits) > 5
    assert ways_taken.count(not proposes) == TRIAL * len(begins), "what loses by a half waits twice as long"


@pytest.mark.parametrize("proposes", [True, False])
def test_what_pays_is_taken_at_once_if_it_pays_clearly(proposes: bool) -> None:
    def rates(there: float) -> Rates:
        return Rates(1.0, there, True) if proposes else Rates(there, 1.0, True)

    trials = Trials(proposes)
    assert ways(trials, rates(MARGIN - 0.01), 20) == [proposes] * 20
    assert ways(trials, rates(MARGIN + 0.01), 20) == [not proposes] * 20 and trials.proposes != proposes


def test_proposals_are_tried_only_where_enough_rows_have_a_draft() -> None:
    few = Rates(0.5, 1.0, True, may_try=False)
    trials = Trials(proposes=False)
    assert not any(ways(trials, few, 8 * FIRST_WAIT)) and not trials.has_tried
    assert ways(trials, Rates(0.5, 1.0, True), TRIAL + 1) == [True] * TRIAL + [False] and trials.has_tried


def test_a_trial_goes_on_to_its_end() -> None:
    trials = Trials(proposes=False)
    trials.retry()
    seen = [(trials.is_trying, trials.next(Rates(0.5, 1.0, True))) for _ in range(TRIAL + 1)]
    assert seen == [(False, True), *[(True, True)] * (TRIAL - 1), (False, False)]


@pytest.mark.parametrize("proposes", [True, False])
def test_a_trial_that_is_wanted_again_comes_at_once_unless_launches_propose_anyway(proposes: bool) -> None:
    trials = Trials(proposes)
    rates = Rates(2.0 if proposes else 0.5, 1.0, True)
    ways(trials, rates, FIRST_WAIT)
    trials.retry()
    assert ways(trials, rates, 2) == [True, True]


Cost = Callable[[int, int], float]  # rows and proposals -> seconds between two results


class World:
    """A worker with costs that the start did not see, and proposals that are kept with one probability."""

    def __init__(self, cost: Cost, acceptance: float, num_rows: int, seed: int) -> None:
        self.clock, self.rng = VirtualClock(), random.Random(seed)
        self.cost, self.acceptance = cost, acceptance
        self.speculation = Speculation(DraftShape(STEPS), 9, AT_START, self.clock)
        self.rows = tuple(range(num_rows))
        self.steps = list[int]()

    def run(self, num_launches: int) -> float:
        """Tokens a second of so many launches."""
        num_tokens, began = 0, self.clock.now()
        for _ in range(num_launches):
            num_steps = self.speculation.next_steps(len(self.rows), len(self.rows))
            noise = self.rng.lognormvariate(0.0, 0.1) * (10.0 if self.rng.random() < 0.01 else 1.0)
            self.clock.advance(self.cost(len(self.rows), num_steps) * noise)
            runs = [self._run(num_steps) for _ in self.rows]
            self.speculation.over(self.rows, PLAIN if self.speculation.rests else num_steps)
            if num_steps:
                self.speculation.count(num_steps, runs)
            num_tokens += sum(map(len, runs))
            self.steps.append(num_steps)
        return num_tokens / (self.clock.now() - began)

    def _run(self, num_steps: int) -> tuple[int, ...]:
        kept = 0
        while kept < num_steps and self.rng.random() < self.acceptance:
            kept += 1
        return (0,) * (kept + 1)

    def expected(self, num_steps: int) -> float:
        """Tokens a second with a fixed number of proposals, but for the noise of launches."""
        length = sum(self.acceptance**index for index in range(num_steps + 1))
        return len(self.rows) * length / self.cost(len(self.rows), num_steps)


def launches(quiet: float, first: float, more: float) -> Cost:
    """Seconds of one that proposes nothing, and of the first proposal and each further one beside it."""
    return lambda num_rows, num_steps: quiet + (first + more * (num_steps - 1) if num_steps else 0.0)


COSTS = {  # the start says: a launch with four proposals takes 1.9 times one without (of 32 rows, three times)
    "as at the start": launches(1.0, 0.3, 0.2),
    "the host hides behind launches without proposals": launches(0.5, 1.0, 0.2),
    "proposals cost nothing": launches(1.0, 0.0, 0.0),
    "everything takes a hundred times as long": launches(100.0, 30.0, 20.0),
    "proposals are dear": launches(1.0, 3.0, 1.0),
}
NOISE = 1.1  # the mean of it


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("num_rows", [1, 32])
def test_never_much_slower_than_the_better_way(name: str, acceptance: float, num_rows: int) -> None:
    """Where the start says that proposals lose, it may take a rest to find that they win."""
    world = World(COSTS[name], acceptance, num_rows, seed=num_rows)
    world.run(100)
    assert world.run(2000) * NOISE > 0.96 * world.expected(0)
    best = max(world.expected(steps) for steps in range(STEPS + 1))
    assert world.run(4000) * NOISE > 0.94 * best


@pytest.mark.parametrize("num_rows", [1, 16])
def test_proposals_that_lose_are_left_within_50_launches_and_tried_rarely(num_rows: int) -> None:
    world = World(COSTS["the host hides behind launches without proposals"], 0.5, num_rows, seed=3)
    assert world.expected(STEPS) < 0.8 * world.expected(0)
    world.run(50)
    assert world.speculation.next_steps(num_rows, num_rows) == 0
    world.run(4000)
    assert sum(steps > 0 for steps in world.steps[50:]) <= 5 * TRIAL


def test_proposals_that_begin_to_pay_are_taken_up() -> None:
    """Another text, or a host that others use less: the next trial finds it."""
    world = World(COSTS["proposals are dear"], 0.5, 1, seed=5)
    world.run(1000)
    assert world.speculation.next_steps(1, 1) == 0
    world.cost, world.acceptance = COSTS["proposals cost nothing"], 0.9
    world.run(2 * LONGEST_WAIT)
    assert world.steps[-20:].count(0) == 0


def test_without_a_clock_costs_stay_as_they_were() -> None:
    speculation = Speculation(DraftShape(STEPS), 9, StepCosts((1,), ((1.0, 9.0, 9.0, 9.0, 9.0),)))
    for _ in range(FIRST_WAIT):
        assert speculation.next_steps(1, 1) == 0
        speculation.over((1,), 0)
