"""The comparison with a peer: its loads, its targets, what is said without a peer, and a short run of Baton alone."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bench.peer import (
    ALONE,
    CROWD,
    DISTURBED,
    OURS,
    PEER,
    QUIET,
    SCENARIOS,
    TARGETS,
    TRACE,
    Rounds,
    Target,
    main,
    show,
    smaller,
)
from bench.records import Goal, Note, Row
from bench.sheet import Printed
from bench.vllm import ABSENT, VARIABLE
from loadtest.load import cells_of, plain_load
from tests.loadtest.reports import measured

LOADS = {name: load for scenario in SCENARIOS.values() for name, load in scenario.loads.items()}
CELLS = cells_of(measured())


def test_every_target_names_a_load_and_a_figure() -> None:
    for target in TARGETS:
        for side, load in (target.over, target.under):
            assert side in (OURS, PEER) and load in LOADS and target.figure in CELLS


def test_the_loads_are_those_that_were_promised() -> None:
    shapes = {CROWD: (64, 16, 256, 64), ALONE: (10, 1, 256, 64), QUIET: (32, 8, 64, 400), DISTURBED: (32, 8, 64, 400)}
    for seed, (name, shape) in enumerate(shapes.items(), 1):
        more: dict[str, Any] = {"intruder_rate": 1.0, "intruder_tokens": 1500} if name == DISTURBED else {}
        assert LOADS[name] == plain_load(*shape, vocab=4096, seed=seed, **more)
    trace = list(LOADS[TRACE].conversations(0))
    assert 160 <= len(trace) <= 170 and list(LOADS[TRACE].arrivals.moments(0))[-1] < 40


def test_quick_is_the_same_in_small() -> None:
    for load in LOADS.values():
        small = smaller(load)
        assert small.num_conversations == (2 * load.max_concurrency if load.max_concurrency else 8)
        assert replace(small, work=load.work, num_conversations=load.num_conversations) == load


def test_a_ratio_is_the_median_of_rounds() -> None:
    """Rounds without a figure are left out."""
    target = Target("tokens/s", (OURS, CROWD), (PEER, CROWD), "at least", 1.3)

    def rounds(*values: float | None) -> list[dict[str, float | None]]:
        return [{"tokens/s": value} for value in values]

    ours, theirs = rounds(100, 150, 300, 7, None), rounds(100, 100, 100, None, 7)
    assert target.ratio({(OURS, CROWD): ours, (PEER, CROWD): theirs}) == 1.5
    assert target.ratio({(OURS, CROWD): ours}) is None
    assert target.ratio({(OURS, CROWD): rounds(1.0), (PEER, CROWD): rounds(0.0)}) is None


def test_without_a_peer_only_targets_of_baton_are_judged() -> None:
    cells: Rounds = {(OURS, name): [{**CELLS, "ITL p99.9": 9.0}] * 2 for name in LOADS}
    sheet = Printed("peer")
    show(cells, sheet)
    rows, goals = ([record for record in sheet.records if isinstance(record, kind)] for kind in (Row, Goal))
    assert [row.table.split(":")[0] for row in rows if isinstance(row, Row)] == [*LOADS]
    assert [goal.words for goal in goals if isinstance(goal, Goal)] == [
        f"{DISTURBED}: ITL p99.9, Baton / Baton, {QUIET}"
    ]


def test_too_few_values_for_a_tail_are_no_figure() -> None:
    sheet = Printed("peer")
    show({(OURS, name): [CELLS] for name in (QUIET, DISTURBED)}, sheet)
    [note] = [record.text for record in sheet.records if isinstance(record, Note)]
    assert note.endswith("no figure, because the values are too few")


@pytest.mark.full
def test_a_quick_run_without_a_peer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["--quick", "--scenario", "trace"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    [[row]] = report["tables"].values()
    assert row["side"] == OURS and row["TTFT p50"] not in ("0", "-") and report["notes"][0] == ABSENT
