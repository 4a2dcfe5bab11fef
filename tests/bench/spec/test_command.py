"""The command measures costs and acceptance, and names a speed for every number of steps."""

import json

import pytest

from bench.spec.__main__ import ACCEPTANCES, SERVED_STEPS, TREES, main
from models.train.measure_draft import MAX_STEPS

SHORT = ["--batches", "1", "2", "--rounds", "1", "--texts", "4", "--turns", "1"]
SIDES = {"without", "adaptive", *map(str, SERVED_STEPS), *TREES}
FORCED = {"without"} | {side for each in ACCEPTANCES for side in (f"4, accepts {each:.0%}", f"adaptive, {each:.0%}")}


@pytest.mark.slow
def test_a_short_run_measures_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SHORT) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["batch"] for row in found["story"]} == {row["batch"] for row in found["29m"]} == {1, 2}
    for row in (*found["story"], *found["29m"]):
        assert min(row["step us"], row["draft / step"], *(row[f"x{num}"] for num in range(1, MAX_STEPS + 1))) > 0
        assert 0 <= row["best"] <= MAX_STEPS

    for batch in (1, 2):
        assert {row["steps"] for row in found["served"] if row["batch"] == batch} == SIDES
        assert {row["steps"] for row in found["served_29m"] if row["batch"] == batch} == FORCED
    for row in (*found["served"], *found["served_29m"]):
        assert row["tokens/s"] > 0 and row["beside without"] > 0
        assert 1 <= row["length"] <= 1 + max(SERVED_STEPS)

    assert 1 <= found["accepted_length"] <= 5
    assert set(found["batch"]) == {"1", "2"}
    for best in found["batch"].values():
        assert best["spec_tok_s"] > 0 and best["plain_tok_s"] > 0 and best["steps"] in SERVED_STEPS


def test_a_batch_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--batches", "0"])
    assert "argument --batches: got 0, expected at least 1" in capsys.readouterr().err
