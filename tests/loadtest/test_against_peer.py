"""What is printed of a comparison."""

import io

from rich.console import Console

from loadtest.against_peer import Comparison, show_comparison
from loadtest.report import figures_of
from loadtest.scenarios import OURS, SCENARIOS, TARGETS
from tests.loadtest.records import answered


def test_without_a_peer_its_targets_are_left_out_in_one_sentence() -> None:
    round_of_ours = [figures_of([answered(0.1, (0.01,) * 2000)], 1.0)]  # enough for a p99.9
    rounds = {(OURS, run.name): round_of_ours for scenario in SCENARIOS for run in scenario.runs}
    out = io.StringIO()
    found = show_comparison(Comparison(SCENARIOS, 1, rounds=rounds), Console(file=out, width=140), False)
    said = out.getvalue()
    assert "Baton / Baton quiet" in said and "Baton / vLLM" not in said and "absent" not in said
    assert f"{len(TARGETS) - 1} targets of {len(TARGETS)} left out, which compare Baton with vLLM" in said
    assert len(found["targets"]) == len(TARGETS)


def test_too_few_values_for_a_tail_are_no_figure() -> None:
    rounds = {(OURS, run.name): [figures_of([answered(0.1, (0.01,))], 1.0)] for each in SCENARIOS for run in each.runs}
    out = io.StringIO()
    show_comparison(Comparison(SCENARIOS, 1, rounds=rounds), Console(file=out, width=140), False)
    assert "no figure" in out.getvalue() and "absent" not in out.getvalue()
