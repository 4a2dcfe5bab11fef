"""The results of a run of `make gpu` as records: one JSON object a line, written as soon as it is known.

    machine                    hardware and software; once
    row, goal, note            a step's figures
    end                        how a step ended

page.py shows them.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
