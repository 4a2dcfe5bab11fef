"""The attention of a decode with a window and without, timed."""

import pytest

from bench.step import windows
from bench.step.windows import attention_us, main
from model.scoring import PLAIN, Scoring


def test_each_scoring_has_a_time() -> None:
    times = attention_us((4, 2, 16), 512, (PLAIN, Scoring(24), Scoring(512)), rounds=3)
    assert len(times) == 3 and min(times) > 0


def test_the_table_has_a_row_for_each_context(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(windows, "HEADS", (4, 2, 16))
    monkeypatch.setattr(windows, "CONTEXTS", (32, 1024))
    main()
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["context", "---", "32", "1,024"]
