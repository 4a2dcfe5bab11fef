"""A step's rows reach the disk at once. A part that fails or has no time is reported, and the other parts run."""

from pathlib import Path

import pytest

from bench.gpu.sheet import FIGURES, PAGE, Folder, StepSheet
from bench.records import End, Goal, Machine, Note, Record, Row
from tests.doubles.clock import VirtualClock


def sheet_in(tmp_path: Path, seconds: float = 100.0) -> tuple[StepSheet, VirtualClock]:
    clock = VirtualClock()
    return StepSheet(Folder(tmp_path), "decode", clock, clock.now() + seconds, judged=True), clock


def test_a_row_is_in_figures_and_page_before_the_next(tmp_path: Path) -> None:
    sheet, _ = sheet_in(tmp_path)
    sheet.row("A step", {"batch": 32}, "In ms.")
    assert sheet.folder.records() == [Row("decode", "A step", {"batch": 32}, "In ms.")]
    assert "| 32 |" in (tmp_path / PAGE).read_text()
    sheet.goal("it", 0.123456, "at least", 0.8)
    assert sheet.folder.records()[1:] == [Goal("decode", "it", 0.1235, "at least", 0.8, judged=True)]


def test_a_part_that_raises_is_a_fault_of_the_step_and_the_next_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet, clock = sheet_in(tmp_path)

    def fails() -> None:
        raise RuntimeError("CUDA error: out of memory\nand more")

    sheet.part("batch 256", 10.0, fails)
    sheet.part("batch 1", 10.0, lambda: sheet.row("A step", {"batch": 1}))
    clock.advance(7.0)
    sheet.end()
    reason = "batch 256: RuntimeError: CUDA error: out of memory"
    assert sheet.folder.records() == [
        Note("decode", reason, fault=True),
        Row("decode", "A step", {"batch": 1}),
        End("decode", "failed", 7.0, reason),
    ]
    assert "Traceback" in capsys.readouterr().err


def test_a_part_without_time_is_left_out_and_named(tmp_path: Path) -> None:
    sheet, clock = sheet_in(tmp_path)
    clock.advance(95.0)
    sheet.part("batch 256", 10.0, lambda: sheet.row("A step", {"batch": 256}))
    sheet.end()
    left_out = Note("decode", "left out: batch 256 (takes up to 10 s, 5 s were left)")
    assert sheet.folder.records() == [left_out, End("decode", "ok", 95.0)]


def test_a_run_forgets_what_its_steps_wrote_before_and_keeps_the_others(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    old: list[Record] = [
        Row("decode", "A step", {"batch": 1}),
        End("decode", "ok", 1.0),
        Row("ipc", "KV", {"GB/s": 9.0}),
    ]
    for record in (Machine({"device": "old"}), *old):
        folder.add(record)
    folder.begin(Machine({"device": "new"}), ["decode", "serve"])
    assert folder.records() == [Machine({"device": "new"}), old[2]]
    assert (tmp_path / PAGE).read_text().startswith("### new")


def test_what_a_killed_process_was_writing_is_not_in_the_way(tmp_path: Path) -> None:
    sheet, _ = sheet_in(tmp_path)
    sheet.note("one")
    (tmp_path / f".{FIGURES}").write_text('{"kind": "note", "st')
    sheet.note("two")
    assert sheet.folder.records() == [Note("decode", "one"), Note("decode", "two")]
