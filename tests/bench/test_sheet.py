"""What a terminal shows of a program's figures, and its last line."""

import json
from math import inf

import pytest

from bench.sheet import Printed


def test_notes_come_at_once_and_tables_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    sheet = Printed("memory")
    sheet.row("A chat", {"turn": 1, "ms": 4.5678}, "Two turns.")
    sheet.note("chat: 30 s")
    assert capsys.readouterr().out == "chat: 30 s\n"
    sheet.row("A chat", {"turn": 2, "ms": inf})
    sheet.goal("ms", 4.5678, "at most", 5.0)
    assert sheet.end() == 0
    *said, last = capsys.readouterr().out.splitlines()
    assert said == [
        "", "**A chat.** Two turns.", "", "| turn | ms |", "|---:|---:|", "| 1 | 4.57 |", "| 2 | - |", "",
        "- met: ms: 4.57 (at most 5)",
    ]  # fmt: skip
    report = json.loads(last)
    assert (report["bench"], report["notes"]) == ("memory", ["chat: 30 s"])
    assert report["tables"] == {"A chat": [{"turn": 1, "ms": 4.5678}, {"turn": 2, "ms": None}]}
    assert [(goal["words"], goal["value"], goal["met"]) for goal in report["goals"]] == [("ms", 4.5678, True)]


def test_a_fault_is_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    sheet = Printed("soak")
    sheet.fault("2 wrong")
    assert sheet.end() == 1 and "2 wrong" in capsys.readouterr().out
