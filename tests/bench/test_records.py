"""Records of `make gpu`: they come back from a file as they were, a step's line says what came of it, and the page is
what it should be, word for word."""

import pytest

from bench.records import End, Goal, Machine, Note, Record, Row, of_lines, page, summary, to_line

FOUND: list[Record] = [
    Machine({"device": "a GPU", "cores": 16}),
    Row("decode", "A step", {"batch": 1, "ms": 4.5, "graphs": "yes", "none": None}, "Times."),
    Goal("decode", "batch 1: floor / forward", 0.71, "at least", 0.8, judged=True),
    Goal("decode", "batch 1: overlap / forward", 1.01, "at most", 1.02, judged=True),
    Note("decode", "left out: batch 256"),
    End("decode", "ok", 312.4),
    End("ipc", "failed", 3.0, "no device"),
    End("trace", "not run", 0.0, "no time was left"),
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
    assert summary("trace", FOUND) == "not run: no time was left"


@pytest.mark.parametrize(
    "sense, value, met",
    [("at least", 0.8, True), ("at least", 0.79, False), ("at most", 0.8, True), ("at most", 0.81, False)],
)
def test_a_goal_is_met_up_to_its_bound(sense: str, value: float, met: bool) -> None:
    assert Goal("decode", "it", value, "at least" if sense == "at least" else "at most", 0.8, True).met == met


def test_goals_that_are_not_judged_are_not_counted() -> None:
    assert summary("decode", [Goal("decode", "it", 9.0, "at most", 1.0, False), End("decode", "ok", 1.0)]) == "ok, 1 s"


# ---- the page ----

ON_THE_PAGE: list[Record] = [
    Machine({"device": "NVIDIA H200", "date": "2026-11-22", "cores": 16}),
    Note("decode", "36 layers"),
    Row("decode", "A decode step", {"graphs": "yes", "ms": 4.5678, "bytes": 16_000_000_000, "share": None}, "In ms."),
    Row("decode", "A decode step", {"graphs": "no", "ms": 123.456, "bytes": 1, "share": 0.5}, "In ms."),
    Goal("decode", "batch 1", 0.71, "at least", 0.8, judged=True),
    Note("decode", "a | b\nc", fault=True),
    End("decode", "failed", 61.0, "a | b"),
    Goal("prefill", "2,048 tokens", 0.02, "at least", 0.6, judged=False),
    End("prefill", "ok", 2.0),
    End("serve", "not run", 0.0, "no time was left"),
]
PAGE = r"""### NVIDIA H200, 2026-11-22

cores 16.

| step | what came of it |
|---|---|
| decode | failed, 61 s; a \| b; 0 of 1 goals met; missed: batch 1: 0.71 (at least 0.8) |
| prefill | ok, 2 s |
| ipc | has not run |
| serve | not run: no time was left |

#### decode

- 36 layers

**A decode step.** In ms.

| graphs | ms | bytes | share |
|---|---:|---:|---:|
| yes | 4.57 | 16,000,000,000 | - |
| no | 123 | 1 | 0.5 |

- **missed**: batch 1: 0.71 (at least 0.8)

- **failed**: a \| b c

#### prefill

- 1 goal, not judged on a CPU
"""


def test_the_page_is_this() -> None:
    assert page(ON_THE_PAGE, ["decode", "prefill", "ipc", "serve"]) == PAGE


def test_a_page_of_nothing_says_so() -> None:
    assert page([], ["decode"]).splitlines() == [
        "### a machine, undated", "", "| step | what came of it |", "|---|---|", "| decode | has not run |",
    ]  # fmt: skip
