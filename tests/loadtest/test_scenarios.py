"""The tables of the comparison, and how a target is judged."""

from dataclasses import fields

import pytest

from loadtest.against_peer import Comparison
from loadtest.report import Figures, figures_of
from loadtest.scenarios import (
    OURS,
    PEER,
    SCENARIOS,
    TARGETS,
    Cell,
    Scenario,
    Target,
    expected_s,
    judge,
    of_round,
    quick,
)
from tests.loadtest.records import answered, failed

RUNS = {run.name: run for scenario in SCENARIOS for run in scenario.runs}
TARGET = Target(
    "x", Cell(OURS, "crowd", "output_tokens_per_s"), Cell(PEER, "crowd", "output_tokens_per_s"), "at least", 1.3
)


def at(tokens_per_s: float) -> Figures:
    return figures_of([answered(0.1, (0.01,), 100)], 100 / tokens_per_s)


def test_every_target_names_a_run_and_a_figure() -> None:
    names = {field.name for field in fields(Figures)}
    for target in TARGETS:
        for cell in (target.over, target.under):
            assert cell.run in RUNS and cell.figure in names and cell.side in (OURS, PEER)


def test_the_loads_are_those_that_were_promised() -> None:
    def shape(name: str) -> tuple[int, int, int, float]:
        load = RUNS[name].load
        return load.concurrency, load.prompt_tokens, load.output_tokens, load.intruder_rate

    assert [shape(name) for name in ("crowd", "alone", "quiet", "disturbed")] == [
        (16, 256, 64, 0), (1, 256, 64, 0), (8, 64, 400, 0), (8, 64, 400, 1.0),
    ]  # fmt: skip
    assert RUNS["disturbed"].load.num_requests == 32 and RUNS["disturbed"].load.intruder_tokens == 1500
    bounds = [(target.kind, target.bound) for target in TARGETS]
    assert bounds == [
        ("at least", 1.3), ("at most", 1.5), ("at most", 1), ("at most", 1),
        ("at least", 20), ("at most", 2), ("at least", 1.5), ("at most", 1.5),
    ]  # fmt: skip
    assert expected_s(SCENARIOS, 3, True) <= 15 * 60


def test_a_target_is_judged_by_the_median_of_rounds() -> None:
    rounds = {(OURS, "crowd"): [at(100), at(150), at(300)], (PEER, "crowd"): [at(100), at(100), at(100)]}
    verdict = judge(TARGET, rounds)
    assert (verdict.ratio, verdict.lowest, verdict.highest, verdict.word) == (1.5, 1, 3, "pass")
    rounds[OURS, "crowd"][1] = at(120)
    assert judge(TARGET, rounds).word == "short"


def test_a_quiet_tail_above_the_disturbed_one_asks_for_another_measurement() -> None:
    target = next(each for each in TARGETS if each.words == "disturbed: ITL p99.9, Baton / Baton quiet")

    def gaps(longest_ms: float) -> Figures:
        return figures_of([answered(0.1, (*[0.005] * 4000, *[longest_ms / 1e3] * 10))], 20.0)

    def word(disturbed_ms: float) -> str:
        return judge(target, {(OURS, "disturbed"): [gaps(disturbed_ms)], (OURS, "quiet"): [gaps(30)]}).word

    assert [word(disturbed_ms) for disturbed_ms in (29, 30, 60, 61)] == ["measure again", "pass", "pass", "short"]


def test_at_most_is_the_other_way_round() -> None:
    target = Target("x", TARGET.over, TARGET.under, "at most", 1.0)
    assert judge(target, {(OURS, "crowd"): [at(100)], (PEER, "crowd"): [at(100)]}).word == "pass"
    assert judge(target, {(OURS, "crowd"): [at(101)], (PEER, "crowd"): [at(100)]}).word == "short"


@pytest.mark.parametrize("theirs", [[], [figures_of([failed("x")], 1.0)]])
def test_what_was_not_measured_is_absent(theirs: list[Figures]) -> None:
    verdict = judge(TARGET, {(OURS, "crowd"): [at(100)], (PEER, "crowd"): theirs})
    assert (verdict.word, verdict.to_json()["ratio"]) == ("absent", None)


def test_quick_is_the_same_in_small_and_rounds_have_prompts_of_their_own() -> None:
    small = {run.name: run.load for scenario in quick(SCENARIOS) for run in scenario.runs}
    assert small.keys() == RUNS.keys()
    assert all(load.num_requests * load.output_tokens <= 1024 for load in small.values())
    seeds = [of_round(run.load, number).seed for run in RUNS.values() for number in range(5)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_one_scenario_alone_is_judged_by_its_own_targets(scenario: Scenario) -> None:
    names = {run.name for run in scenario.runs}
    verdicts = Comparison((scenario,), 1).verdicts()
    assert verdicts and all(verdict.target.over.run in names for verdict in verdicts)
    others = [Comparison((other,), 1).verdicts() for other in SCENARIOS if other != scenario]
    assert len(verdicts) + sum(map(len, others)) == len(TARGETS)
