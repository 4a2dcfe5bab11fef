"""`python -m bench.memory --quick` runs to its end and leaves figures."""

import json

import pytest

from bench.memory import main


@pytest.mark.slow
def test_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [len(rows) for rows in report["tables"].values()] == [3]
    assert all(goal["met"] for goal in report["goals"]), report["goals"]
