"""`python -m bench.step`: a short run of each part leaves every figure."""

import json
import os
from typing import Any

import pytest

from bench.step import __main__ as command
from bench.step.__main__ import AS_WORKER, main
from bench.step.grammar import NUM_PROPERTIES, ROWS
from bench.step.kinds import KINDS
from bench.step.spec import SHAPES
from models.train.measure_draft import MAX_STEPS

STORY = ("--model", "models/story", "--context", "8", "--rounds", "2")


def tables(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[dict[str, Any]]]:
    """By title, the rows of the last line of output."""
    assert main(words) == 0
    by_name: dict[str, list[dict[str, Any]]] = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]
    return by_name


def test_servers_that_a_part_starts_do_not_see_the_variable_that_they_would_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(AS_WORKER, "1")
    monkeypatch.setattr(command, "main", lambda: int(AS_WORKER in os.environ))
    assert command.run_as_worker() == 0


@pytest.mark.slow
def test_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--batches 1 2 --scheduled 1 4 --kinds 2 --steps 3".split()
    steps, kinds, host = tables(capsys, "overlap", *STORY, *sizes).values()
    assert [(row["threads"], row["batch"]) for row in steps] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [row["kind"] for row in kinds] == [kind.name for kind in KINDS]
    assert all(min(row["forward"], row["overlap"], row["serial"]) > 0 for row in (*steps, *kinds))
    assert [row["batch"] for row in host] == [1, 4] and all(min(row["schedule"], row["encode"]) > 0 for row in host)


@pytest.mark.slow
def test_asks_of_one_request_of_a_kind_and_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--steps 2 --batch 2 --kinds log-probabilities".split()
    [rows] = tables(capsys, "asks", *STORY, *sizes).values()
    assert [row["asking"] for row in rows] == ["none", "1", "all 2"] and all(row["us"] > 0 for row in rows)


@pytest.mark.slow
def test_asks_of_two_commits(capsys: pytest.CaptureFixture[str]) -> None:
    """The earlier one is measured by this checkout's programs."""
    [rows] = tables(capsys, "asks", *STORY, *"--steps 2 --batch 2 --before HEAD".split()).values()
    assert [row["asking"] for row in rows] == ["HEAD", "this checkout"] and all(row["us"] > 0 for row in rows)


@pytest.mark.slow
def test_experts(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--layers 1 --experts 8 --context 20 --prompt 20 --rounds 1 --batches 1 2".split()
    for dtype, first in (("bfloat16", ["packed", "in place"]), ("float32", ["in place"])):
        [rows] = tables(capsys, "experts", *sizes, "--dtype", dtype).values()
        assert [row["side"] for row in rows] == [*first, "torch", "dense", "transformers"]
        assert all(row[kind] > 0 for row in rows for kind in ("decode of 1", "decode of 2", "prompt of 20"))


@pytest.mark.slow
def test_spec(capsys: pytest.CaptureFixture[str]) -> None:
    short = "--batches 1 2 --rounds 1 --texts 4 --turns 1 --clients".split()
    costs, served = tables(capsys, "spec", *short).values()
    assert {row["batch"] for row in costs} == {1, 2}
    for row in costs:
        assert min(row["step us"], row["draft"], *(row[f"x{num}"] for num in range(1, MAX_STEPS + 1))) > 0
        assert 0 <= row["best"] <= MAX_STEPS and 1 <= row["accepted, 4 steps"] <= 5
    for batch in (1, 2):
        assert {row["steps"] for row in served if row["batch"] == batch} == {"without", "adaptive", *SHAPES}
    assert all(row["tokens/s"] > 0 and 1 <= row["length"] <= 7 for row in served)


@pytest.mark.slow
def test_grammar(capsys: pytest.CaptureFixture[str]) -> None:
    steps, compiled = tables(capsys, "grammar", "--context", "8", "--steps", "2", "--rounds", "1").values()
    assert [(row["worker"], row["with a grammar"]) for row in steps] == [
        (worker, rows) for worker in ("overlap", "serial") for rows in ROWS
    ]
    assert all(row["ms"] > 0 for row in steps)
    assert [row["properties"] for row in compiled] == [*NUM_PROPERTIES]
    assert all(row["gateway"] > 0 and row["worker"] > 0 and row["longest wait"] >= 0 for row in compiled)


def test_a_batch_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["spec", "--batches", "0"])
    assert "argument --batches: got '0', expected an integer of at least 1" in capsys.readouterr().err


def test_a_later_commit_needs_an_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["asks", "--after", "HEAD"])
    assert "--after needs --before" in capsys.readouterr().err
