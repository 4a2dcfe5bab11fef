"""Writes the records of a step at once, with the page, and tells the step how much time is left.

A process that is killed leaves what it has written.
"""

import gc
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from bench.gpu.plan import STEPS
from bench.records import End, Machine, Record, of_lines, of_step, page, to_line
from bench.sheet import Sheet
from runtime.clock import Clock

FIGURES, PAGE = "figures.jsonl", "page.md"


class Folder:
    """The figures and the page of one run. Only one process at a time writes here."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path

    def records(self) -> list[Record]:
        """All records."""
        file = self.path / FIGURES
        return list(of_lines(file.read_text(encoding="utf-8").splitlines())) if file.exists() else []

    def add(self, record: Record) -> None:
        """Writes a record to disk, and the page with it."""
        self._write([*self.records(), record])

    def begin(self, machine: Machine, names: list[str]) -> None:
        """Drops the machine and these steps of earlier runs; keeps the other steps."""
        kept = [record for record in self.records() if not isinstance(record, Machine)]
        self._write([machine, *(record for record in kept if not any(of_step(record, name) for name in names))])

    def _write(self, records: list[Record]) -> None:
        self._replace(FIGURES, "".join(to_line(record) + "\n" for record in records))
        self._replace(PAGE, page(records, [step.name for step in STEPS]))

    def _replace(self, name: str, text: str) -> None:
        """Replaces the file as a whole, even if a process is killed meanwhile."""
        unfinished = self.path / f".{name}"
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path / name)


class StepSheet(Sheet):
    """One step's part of a folder. The step should end by `deadline_s` of `clock`."""

    def __init__(self, folder: Folder, step: str, clock: Clock, deadline_s: float, judged: bool) -> None:
        super().__init__(step, folder.add, judged)
        self.folder = folder
        self._clock = clock
        self._start_s, self._deadline_s = clock.now(), deadline_s
        self._faults: list[str] = []

    def fault(self, text: str) -> None:
        """Adds a failure. The step goes on but counts as failed."""
        self._faults.append(text)
        super().fault(text)

    @property
    def left_s(self) -> float:
        """Seconds until the step should end."""
        return self._deadline_s - self._clock.now()

    def part(self, what: str, seconds: float, run: Callable[[], None]) -> None:
        """Runs a part of the step if its greatest time is left, else writes a note. A part that raises is a fault, and
        the others go on."""
        if self.left_s < seconds:
            self.note(f"left out: {what} (takes up to {seconds:.0f} s, {max(0.0, self.left_s):.0f} s were left)")
            return
        try:
            run()
        except Exception as error:  # noqa: BLE001 - a device, a driver or a server may raise anything
            traceback.print_exc(file=sys.stderr)
            self.fault(f"{what}: {_brief(error)}")
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def end(self) -> None:
        """The step has ended."""
        spent_s = self._clock.now() - self._start_s
        reason = self._faults[0] if self._faults else ""
        self.folder.add(End(self.name, "failed" if reason else "ok", round(spent_s, 1), reason))


def _brief(error: Exception) -> str:
    """The error's type and first line."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first[:200]}"
