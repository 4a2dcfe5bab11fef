"""The results of a measurement as records: one JSON object a line.

    row, goal, note            the figures of a program, or of a step of `make gpu`
    machine                    hardware and software; once in a run of `make gpu`
    end                        how a step of it ended

`said` and `page` write them in Markdown, to be pasted into docs/measurements.md. Pure.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from loadtest.figures.distribution import number

Value = str | int | float | None


@dataclass(frozen=True)
class Machine:
    """Hardware and software: names and values for the first lines of the page."""

    facts: dict[str, Value]


@dataclass(frozen=True)
class Row:
    """One line of a step's table. All rows of a table have the same cells. `about` explains the columns."""

    step: str
    table: str
    cells: dict[str, Value]
    about: str = ""


@dataclass(frozen=True)
class Goal:
    """A figure that has a bound. `judged` is false if it tells nothing about a GPU."""

    step: str
    words: str
    value: float
    sense: Literal["at least", "at most"]
    bound: float
    judged: bool

    @property
    def met(self) -> bool:
        """Whether the bound holds."""
        return self.value >= self.bound if self.sense == "at least" else self.value <= self.bound

    def __str__(self) -> str:
        return f"{self.words}: {self.value:.3g} ({self.sense} {self.bound:g})"


@dataclass(frozen=True)
class Note:
    """A sentence of a step. `fault`: a part failed, and so the step does."""

    step: str
    text: str
    fault: bool = False


@dataclass(frozen=True)
class End:
    """A step has ended after `seconds`. `why` says what failed, or why the step was not run."""

    step: str
    outcome: Literal["ok", "failed", "not run"]
    seconds: float
    why: str = ""


Record = Machine | Row | Goal | Note | End
_KINDS: dict[str, type[Record]] = {"machine": Machine, "row": Row, "goal": Goal, "note": Note, "end": End}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_line(record: Record) -> str:
    """The record as one line of JSON. Infinity and NaN are errors."""
    return json.dumps({"kind": _NAMES[type(record)], **asdict(record)}, allow_nan=False)


def of_lines(lines: Iterable[str]) -> Iterator[Record]:
    """The records of a file."""
    for line in lines:
        fields: dict[str, Any] = json.loads(line)
        yield _KINDS[fields.pop("kind")](**fields)


def of_step(record: Record, name: str) -> bool:
    """Whether the step called `name` has written it."""
    return not isinstance(record, Machine) and record.step == name


def summary(name: str, records: Iterable[Record]) -> str:
    """A step's result in one line: its end, and each goal with its figure."""
    own = [record for record in records if of_step(record, name)]
    end = next((record for record in reversed(own) if isinstance(record, End)), None)
    if end is None:
        return "has not run"
    if end.outcome == "not run":
        return f"not run: {end.why}"

    goals = [record for record in own if isinstance(record, Goal) and record.judged]
    missed = [str(goal) for goal in goals if not goal.met]

    told = [f"{end.outcome}, {end.seconds:.0f} s", *([end.why] if end.why else [])]
    if goals:
        told.append(f"{len(goals) - len(missed)} of {len(goals)} goals met")
    if missed:
        told.append("missed: " + ", ".join(missed))

    return "; ".join(told)


# ---- the page ----


def page(records: Sequence[Record], steps: Sequence[str]) -> str:
    """A heading, the machine, a line for each step, then each step's tables."""
    machine = next((record for record in records if isinstance(record, Machine)), Machine({}))
    lines = [
        f"### {_text(machine.facts.get('device', 'a machine'))}, {_text(machine.facts.get('date', 'undated'))}",
        "",
    ]
    facts = [f"{name} {_text(value)}" for name, value in machine.facts.items() if name not in ("device", "date")]
    lines += [", ".join(facts) + ".", ""] if facts else []
    lines += ["| step | what came of it |", "|---|---|"]
    lines += [f"| {name} | {_escaped(summary(name, records))} |" for name in steps]
    for name in steps:
        own = [record for record in records if of_step(record, name) and not isinstance(record, End)]
        lines += ["", f"#### {name}", *said(own)] if own else []
    return "\n".join(lines) + "\n"


def said(own: Sequence[Record]) -> Iterator[str]:
    """The lines of a step: notes before its tables, tables, goals, other notes. Each of these begins with an empty
    line."""
    first = next((index for index, record in enumerate(own) if isinstance(record, Row)), len(own))
    if before := [_sentence(note) for note in own[:first] if isinstance(note, Note)]:
        yield from ["", *before]
    tables: dict[str, list[Row]] = {}
    for record in own:
        if isinstance(record, Row):
            tables.setdefault(record.table, []).append(record)
    for title, rows in tables.items():
        yield ""
        yield from _table(title, rows)
    for part in (list(_goals(own)), [_sentence(note) for note in own[first:] if isinstance(note, Note)]):
        yield from ["", *part] if part else []


def _table(title: str, rows: Sequence[Row]) -> Iterator[str]:
    """A title, a sentence about the columns, and the rows. Columns of numbers are aligned right."""
    about = next((row.about for row in rows if row.about), "")
    yield f"**{title}.** {about}".rstrip()
    yield ""
    names = list(rows[0].cells)
    yield "| " + " | ".join(names) + " |"
    yield "|" + "|".join(_rule(row.cells.get(name) for row in rows) for name in names) + "|"
    for row in rows:
        yield "| " + " | ".join(_escaped(_text(row.cells.get(name))) for name in names) + " |"


def _rule(values: Iterable[Value]) -> str:
    return "---:" if all(value is None or isinstance(value, int | float) for value in values) else "---"


def _goals(own: Sequence[Record]) -> Iterator[str]:
    goals = [record for record in own if isinstance(record, Goal)]
    for goal in goals:
        if goal.judged:
            yield f"- {'met' if goal.met else '**missed**'}: {goal}"
    if unjudged := sum(not goal.judged for goal in goals):
        yield f"- {unjudged} goal{'s' * (unjudged != 1)}, not judged on a CPU"


def _sentence(note: Note) -> str:
    return f"- {'**failed**: ' if note.fault else ''}{_escaped(note.text)}"


def _text(value: Value) -> str:
    """Three significant digits; integers in full."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else number(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
