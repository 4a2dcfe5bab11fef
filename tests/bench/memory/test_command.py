"""`python -m bench.memory --quick`: each part runs to its end and leaves figures."""

import json

import pytest

from bench.memory.__main__ import PARTS, main
from loadtest.peer import VARIABLE

pytestmark = pytest.mark.slow
ROWS = {"chats": 2, "pool": 2, "system": 2, "chat": 3, "trace": 1, "served": 2, "host": 2}
EXACT = ("chats", "pool", "system")  # parts whose goals do not hang on speed: all but one of them


@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs(part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["--quick", "--part", part]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(found[part]["rows"]) == ROWS[part]
    goals = found[part]["goals"]
    assert all(goal["is_met"] for goal in goals if "tokens/s" not in goal["words"] and part in EXACT), goals
