"""`python -m bench.memory --quick`: each part runs to its end and leaves figures."""

import json

import pytest

from bench.memory.__main__ import PARTS, main
from loadtest.peer import VARIABLE

pytestmark = pytest.mark.slow
ROWS = {"system": 3, "trace": 1}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs(part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["--quick", "--part", part]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [len(rows) for rows in found["tables"].values()] == [ROWS[part]]
    assert all(goal["met"] for goal in found["goals"]), found["goals"]
