"""The sheet of a step, and what was written in it."""

from pathlib import Path

from bench.gpu.sheet import Folder, StepSheet
from bench.records import Note, Row
from tests.doubles.clock import VirtualClock


def sheet_in(folder: Path, step: str = "passes") -> StepSheet:
    return StepSheet(Folder(folder), step, VirtualClock(), 1000.0, judged=True)


def faults_in(sheet: StepSheet) -> list[str]:
    return [record.text for record in sheet.folder.records() if isinstance(record, Note) and record.fault]


def rows_in(sheet: StepSheet) -> list[Row]:
    return [record for record in sheet.folder.records() if isinstance(record, Row)]
