"""Writes the page of a run in Markdown, to be pasted into docs/measurements.md. Pure: records in, text out."""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

from bench.gpu.records import End, Goal, Machine, Note, Record, Row, Value, of_step, summary
from loadtest.report import counted


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
        lines += ["", *_of_step(name, own)] if own else []
    return "\n".join(lines) + "\n"


def _of_step(name: str, own: Sequence[Record]) -> Iterator[str]:
    yield f"#### {name}"
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
    for said in (list(_goals(own)), [_sentence(note) for note in own[first:] if isinstance(note, Note)]):
        yield from ["", *said] if said else []


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
        yield f"- {counted(unjudged, 'goal')}, not judged on a CPU"


def _sentence(note: Note) -> str:
    return f"- {'**failed**: ' if note.fault else ''}{_escaped(note.text)}"


def _text(value: Value) -> str:
    """Three significant digits; integers in full."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else value
    if not isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
