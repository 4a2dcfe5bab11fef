"""What people see of a run: a progress bar, lines at its end, and a page of one file like that of `baton bench`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.shown.page import document, facts
from loadtest.shown.tables import new_table
from loadtest.verify.findings import Finding, Result

_TOLD = 5


class Show(Protocol):
    """Is called after each request."""

    def __call__(self, phase: str, requests: int) -> None: ...


@contextmanager
def progress_bar(console: Console, most: int) -> Iterator[Show]:
    """A bar of requests, with the phase that runs. Without a terminal it shows nothing."""
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("quiet", total=most)
        yield lambda phase, requests: progress.update(task, description=phase, completed=min(requests, most))


def show_result(console: Console, result: Result) -> None:
    """The oracles, verdicts by phase, the first findings, and the verdict on the run."""
    for line in lines_of(result):
        console.print(line, highlight=False, markup=False)
    table = new_table(False, "phase", *_columns(result))
    for row in _rows(result):
        table.add_row(*row)
    console.print(table)
    for finding in result.findings[:_TOLD]:
        for name, text in _told(finding):
            console.print(f"{name}: {text}", highlight=False, markup=False, soft_wrap=True)
    console.print(result.sentence, style="bold", highlight=False, markup=False)


def lines_of(result: Result) -> Iterator[str]:
    """The oracles with their near ties, and how the run ended."""
    for name, what in result.oracles.items():
        noise = result.noises.get(name)
        tie = f"; near tie {noise.tau:.4g}, the quiet server differed by {noise.largest:.4g}" if noise else ""
        yield f"{name}: {what}{tie}"
    yield f"ended: {result.stopped or result.ended or 'early'}; {result.num_scored} answers were scored alone"


def page_of(result: Result, about: Mapping[str, Any]) -> str:
    """The page: one HTML file, no script, nothing loaded from elsewhere."""
    title = f"{about['model']}: {result.sentence}"
    head = "".join(f"<th>{escape(name)}</th>" for name in ("phase", *_columns(result)))
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in _rows(result))
    parts = [
        f"<h1>{escape(title)}</h1>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines_of(result)) + "</ul>",
        f"<h2>Verdicts</h2><table><tr>{head}</tr>{rows}</table>",
    ]
    for finding in result.findings:
        facts_of = "".join(f"<tr><td>{name}</td><td>{escape(text)}</td></tr>" for name, text in _told(finding))
        parts.append(f"<h2 class='refused'>{finding.verdict}</h2><table class='facts'>{facts_of}</table>")
    return document(title, [*parts, "<h2>Environment</h2>", facts(about)], "What it sees: docs/verify.md of Baton.")


def _columns(result: Result) -> list[str]:
    return [str(verdict) for verdict in result.counts]


def _rows(result: Result) -> Iterator[list[str]]:
    for phase, counts in result.verdicts.items():
        yield [phase, *(str(counts[verdict]) for verdict in result.counts)]


def _told(finding: Finding) -> Iterator[tuple[str, str]]:
    margin = "" if finding.margin is None else f"; margin {finding.margin:.4f}"
    yield str(finding.verdict), f"in {finding.phase}: {finding.why}{margin}"
    yield from ((name, text) for name in ("got", "known", "again") if (text := getattr(finding, name)))
