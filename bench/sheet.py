"""What a program or a step of one writes: rows of tables, goals, notes; and how a terminal shows them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Literal

from bench.records import Goal, Note, Record, Row, Value, said


class Sheet:
    """Gives each record to `add` at once. `judged`: whether goals count."""

    def __init__(self, name: str, add: Callable[[Record], None], judged: bool = True) -> None:
        self.name = name
        self._add = add
        self._judged = judged

    def row(self, table: str, cells: Mapping[str, Value], about: str = "") -> None:
        """Adds a line to a table. `about` explains its columns."""
        self._add(Row(self.name, table, dict(cells), about))

    def goal(self, words: str, value: float, sense: Literal["at least", "at most"], bound: float) -> None:
        """Adds a figure that has a bound."""
        self._add(Goal(self.name, words, round(value, 4), sense, bound, self._judged))

    def note(self, text: str) -> None:
        """Adds a sentence."""
        self._add(Note(self.name, text))

    def fault(self, text: str) -> None:
        """Adds a failure. The others go on."""
        self._add(Note(self.name, text, fault=True))


class Printed(Sheet):
    """Prints notes and faults at once, and at the end all tables and goals, then one JSON object on the last line."""

    def __init__(self, name: str) -> None:
        self.records: list[Record] = []
        super().__init__(name, self._keep)

    def _keep(self, record: Record) -> None:
        self.records.append(record)
        if isinstance(record, Note):
            print(record.text, flush=True)

    def end(self) -> int:
        """Returns the exit status: 1 if there is a fault."""
        rows = [record for record in self.records if isinstance(record, Row)]
        goals = [record for record in self.records if isinstance(record, Goal)]
        notes = [record.text for record in self.records if isinstance(record, Note)]
        print("\n".join(said([*rows, *goals])))
        tables: dict[str, list[dict[str, Value]]] = {}
        for row in rows:
            tables.setdefault(row.table, []).append({name: _known(value) for name, value in row.cells.items()})
        judged = [{**asdict(goal), "met": goal.met} for goal in goals]
        print(json.dumps({"bench": self.name, "tables": tables, "goals": judged, "notes": notes}))
        return int(any(isinstance(record, Note) and record.fault for record in self.records))


def _known(value: Value) -> Value:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not isfinite(value) else value
