"""The command measures steps with and without grammars, and what compiling takes."""

import json

import pytest

from bench.grammar.__main__ import NUM_PROPERTIES, ROWS, main


@pytest.mark.slow
def test_a_short_run_measures_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--context", "8", "--steps", "2", "--rounds", "1", "--beside", "0"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {*found["step_ms"]} == {"overlap", "serial"}
    for times in found["step_ms"].values():
        assert {*times} == {str(num) for num in ROWS} and min(times.values()) > 0
    assert [row["properties"] for row in found["compile"]] == [*NUM_PROPERTIES]
    assert all(
        row["gateway ms"] > 0 and row["worker ms"] > 0 and row["longest wait ms"] >= 0 for row in found["compile"]
    )
    assert found["neighbour"] == []
