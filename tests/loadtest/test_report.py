"""Figures from records."""

import math

from loadtest.figures.record import Ending
from loadtest.report import figures_of, median_figures, ratios
from tests.loadtest.records import answered, failed, recorded


def test_a_tail_of_too_few_values_is_left_to_the_maximum() -> None:
    few = figures_of([answered(0.1, (0.01, 0.02))], 1.0)
    assert math.isnan(few.ttft_p99_ms) and few.ttft_max_ms == 100
    assert median_figures([few])["ttft_p99_ms"] is None


def test_figures_count_only_answers_that_succeeded() -> None:
    timings = [answered(0.1, (0.01, 0.03)), answered(0.3, (0.02,)), failed("HTTP 503")]
    found = figures_of(timings, duration_s=2.0)
    assert (found.num_ok, found.num_errors) == (2, 1)
    assert found.output_tokens_per_s == 2.5
    assert found.ttft_p50_ms == 100
    assert round(found.itl_max_ms, 6) == 30


def test_ratios_pair_rounds_and_errors_add_up() -> None:
    fast = figures_of([answered(0.1, (0.01,), 20)], 1.0)
    slow = figures_of([answered(0.2, (0.02,), 10), failed("x")], 1.0)
    assert ratios([fast, slow], [slow, slow])["output_tokens_per_s"] == 1.5
    assert median_figures([slow, slow])["num_errors"] == 2


def test_times_count_from_when_a_request_was_due() -> None:
    late = recorded(2.0, [3.0, 3.5], [1, 1], due_s=0.5)
    found = figures_of([late], 1.0)
    assert (found.ttft_p50_ms, found.e2e_p50_ms, found.itl_p50_ms) == (2500, 3000, 500)


def test_intruders_without_an_answer_have_waited_until_the_end() -> None:
    waiting = recorded(1.0, [], [], end_s=9.0, ending=Ending.UNFINISHED)
    found = figures_of([answered(0.1)], 1.0, [answered(0.5), waiting, failed("x")])
    assert (found.num_intruders, found.intruder_ttft_max_ms, found.num_errors) == (3, 8000, 1)
