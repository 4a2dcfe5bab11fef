"""Records of `make gpu`: they come back from a file as they were, and a step's line says what came of it."""

import pytest

from bench.gpu.records import End, Goal, Machine, Note, Record, Row, of_lines, summary, to_line

FOUND: list[Record] = [
    Machine({"device": "a GPU", "cores": 16}),
    Row("decode", "A step", {"batch": 1, "ms": 4.5, "graphs": "yes", "none": None}, "Times."),
    Goal("decode", "batch 1: floor / forward", 0.71, "at least", 0.8, judged=True),
    Goal("decode", "batch 1: overlap / forward", 1.01, "at most", 1.02, judged=True),
    Note("decode", "left out: batch 256"),
    End("decode", "ok", 312.4),
    End("ipc", "failed", 3.0, "no device"),
    End("profile", "not run", 0.0, "no time was left"),
]


def test_records_come_back_as_they_were() -> None:
    assert list(of_lines([to_line(record) for record in FOUND])) == FOUND


def test_a_number_that_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_line(Row("decode", "A step", {"ms": float("nan")}))


def test_a_summary_names_what_was_missed_with_its_number() -> None:
    assert summary("decode", FOUND) == (
        "ok, 312 s; 1 of 2 goals met; missed: batch 1: floor / forward: 0.71 (at least 0.8)"
    )
    assert summary("ipc", FOUND) == "failed, 3 s; no device"
    assert summary("serve", FOUND) == "has not run"
    assert summary("profile", FOUND) == "not run: no time was left"


@pytest.mark.parametrize(
    "sense, value, met",
    [("at least", 0.8, True), ("at least", 0.79, False), ("at most", 0.8, True), ("at most", 0.81, False)],
)
def test_a_goal_is_met_up_to_its_bound(sense: str, value: float, met: bool) -> None:
    assert Goal("decode", "it", value, "at least" if sense == "at least" else "at most", 0.8, True).met == met


def test_goals_that_are_not_judged_are_not_counted() -> None:
    assert summary("decode", [Goal("decode", "it", 9.0, "at most", 1.0, False), End("decode", "ok", 1.0)]) == "ok, 1 s"
