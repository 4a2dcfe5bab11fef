"""Rests of a soak run, and what is counted in it."""

from typing import Any

import pytest

from bench.soak.phases import COUNTERS, Counted, Rest
from bench.soak.run import Findings
from loadtest.verify.judge import Verdict

SPILLS = "choices moved to host memory"


def page(**spills: float) -> str:
    lines = [
        f'baton_kv_spills_total{{model_name="m",role="unified",worker="{who}"}} {n:.1f}' for who, n in spills.items()
    ]
    return "\n".join(["# TYPE baton_kv_spills_total counter", *lines, 'baton_running_requests{worker="a"} 3.0', ""])


def test_what_was_counted_before_the_run_is_not_of_the_run() -> None:
    counted = Counted()
    for seen in (page(a=5, b=1), page(a=7, b=1), page(a=12, b=1)):
        counted.take(seen)
    assert counted.shown() == {SPILLS: {"a": 7}, **{words: {} for words in COUNTERS if words != SPILLS}}


def test_a_worker_that_is_started_again_counts_from_nothing() -> None:
    """So does one that was not there at first. Pages without a worker lose nothing."""
    counted = Counted()
    for seen in (page(a=5), page(), page(a=2), page(a=4, b=3)):
        counted.take(seen)
    assert counted.shown()[SPILLS] == {"a": 4, "b": 3}


def test_labels_of_the_gateway() -> None:
    counted = Counted()
    before = 'baton_request_retries_total{model_name="m",reason="retracted"} 1.0\n'
    before += 'baton_requests_total{model_name="m",outcome="ok"} 1.0\n'
    counted.take(before)
    counted.take(before.replace(" 1", " 4"))
    assert counted.shown()["attempts after the first"] == {"retracted": 3}
    assert counted.shown()["requests that ended"] == {"ok": 3}


def rows(**launches: int) -> list[dict[str, Any]]:
    return [{"pid": pid, "launches": number} for pid, number in launches.items()]


@pytest.mark.parametrize(
    "before, after, launches",
    [
        (rows(a=5, b=7), rows(b=7, a=5), 0),
        (rows(a=5, b=7), rows(a=5, b=9), 2),
        (rows(a=5, b=7), rows(a=5, c=1), None),
        (rows(a=5, b=7), rows(a=5), None),
        ([], [], None),
    ],
)
def test_a_rest(before: list[dict[str, Any]], after: list[dict[str, Any]], launches: int | None) -> None:
    """Its launches are unknown if a worker was started again."""
    assert Rest.between(before, after, 9.0) == Rest(9.0, launches)


def test_a_launch_in_a_rest_is_a_problem() -> None:
    findings = Findings(at_rest=True, rests=[Rest(9.0, 0), Rest(8.0, None), Rest(7.5, 3)])
    findings.verdicts[Verdict.EXACT] = 1
    assert findings.problems() == ["3 launches in 8 s of rest"]
