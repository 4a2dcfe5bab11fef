"""Shows processes that start, run and end: live progress on a terminal, plain lines elsewhere.

Progress, logs and errors go to stderr. Only the ready line and the commands below it go to stdout. After the ready
line, messages of `baton` itself have the form of a log line, with a time.
"""

import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

_LEVELS = {"warning": "yellow", "error": "red", "debug": "dim"}
_ALSO_LOGGED = ("KV memory", "joining the gateway")
_LOG_LINE = re.compile(r"^\S+Z (?P<level>[a-z]+) (?P<process>\S+) ")


def log_level_of(line: str) -> str:
    """The level of one of our log lines, such as `warning`; empty for other lines."""
    match = _LOG_LINE.match(line)
    return match["level"] if match else ""


def with_name(name: str, line: str) -> str:
    """The line with the process's name in front. Our own log lines carry the name already."""
    match = _LOG_LINE.match(line)
    return line if match and match["process"] == name else f"{name} | {line}"


def describe_loading(details: Mapping[str, Any]) -> str:
    """`loading weights`. A phrase that begins with a verb stays as it is: `joining the gateway`."""
    what = str(details.get("what", ""))
    return what if what.split(" ", maxsplit=1)[0].endswith("ing") else f"loading {what}".rstrip()


def describe_ready(details: Mapping[str, Any]) -> str:
    """`ready  http://127.0.0.1:8000` or `ready  512 pages of KV`."""
    if isinstance(details.get("http"), str):
        return f"ready, {details['http']}"
    if isinstance(details.get("kv_pages"), int):
        return f"ready, {details['kv_pages']} pages of KV"
    return "ready"


def stamped(level: str, sentence: str) -> str:
    """A message of `baton` in the form of runtime/log.py: `2026-01-31T12:00:00.000Z error baton decode-0 was killed by
    SIGKILL`."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    return f"{at}Z {level} baton {sentence}"


class Console:
    """Shows the life of processes by name: one line per event, for files and pipes. A loading step is shown once, not
    for every percent. With `with_logs`, events that the processes log as well are not shown."""

    _own = "baton: "  # before a sentence of `baton` itself, until all processes serve

    def __init__(self, *, with_logs: bool) -> None:
        self._with_logs = with_logs
        self._shown: dict[str, str] = {}
        self._serving = False

    def starting(self, name: str) -> None:
        """The process has been started."""
        self._say(f"baton: {name}: starting")

    def loading(self, name: str, details: Mapping[str, Any]) -> None:
        """The process is loading `details["what"]`; `done` and `total` are optional and give its progress."""
        text = describe_loading(details)
        if self._with_logs and details.get("what") in _ALSO_LOGGED:
            return
        if self._shown.get(name) != text:
            self._shown[name] = text
            self._say(f"baton: {name}: {text}")

    def ready(self, name: str, details: Mapping[str, Any]) -> None:
        """The process serves."""
        if not self._with_logs:
            self._say(f"baton: {name}: {describe_ready(details)}")

    def log_line(self, name: str, line: str) -> None:
        """The process wrote a line."""
        match = _LOG_LINE.match(line)
        self._say(with_name(name, line), _LEVELS.get(match["level"], "") if match else "dim")

    def trouble(self, sentence: str) -> None:
        """Shows an error."""
        text = stamped("error", sentence) if self._serving else f"{self._own}error: {sentence}"
        self._say(text, _LEVELS["error"])

    def note(self, sentence: str) -> None:
        """Shows a remark."""
        self._say(stamped("info", sentence) if self._serving else f"{self._own}{sentence}", "dim")

    def serving(self, lines: list[str]) -> None:
        """Ends the progress display and prints `lines` on stdout, once all processes serve."""
        self._serving = True
        print("\n".join(lines), flush=True)

    def refresh(self) -> None:
        """Redraws the live display."""

    def close(self) -> None:
        """Ends any live display."""

    def _say(self, line: str, style: str = "") -> None:
        print(line, file=sys.stderr, flush=True)


class LiveConsole(Console):
    """For a terminal: a row per process with a spinner and a bar; logs scroll above it."""

    _own = ""

    def __init__(self) -> None:
        super().__init__(with_logs=True)
        self._out = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("[bold]{task.fields[process]:<12}"),
            BarColumn(bar_width=16),
            TextColumn("{task.description}"),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._out,
            auto_refresh=False,
        )
        self._rows: dict[str, TaskID] = {}

    def starting(self, name: str) -> None:
        """See Console."""
        self._progress.start()
        self._rows[name] = self._progress.add_task("starting", total=None, process=name)

    def loading(self, name: str, details: Mapping[str, Any]) -> None:
        """See Console."""
        done, total = details.get("done"), details.get("total")
        self._progress.update(
            self._rows[name],
            description=describe_loading(details),
            completed=done if isinstance(done, int | float) else None,
            total=total if isinstance(total, int | float) else None,
        )

    def ready(self, name: str, details: Mapping[str, Any]) -> None:
        """See Console."""
        self._progress.update(self._rows[name], description=describe_ready(details), completed=1, total=1)

    def serving(self, lines: list[str]) -> None:
        """See Console."""
        self.close()
        self._serving = True
        out = RichConsole(highlight=False, soft_wrap=True)
        first, *rest = lines
        out.print(Text(first, style="bold green"))
        for line in rest:
            out.print(Text(line))

    def refresh(self) -> None:
        """See Console."""
        self._progress.refresh()

    def close(self) -> None:
        """See Console."""
        if self._progress.live.is_started:
            self._progress.stop()

    def _say(self, line: str, style: str = "") -> None:
        self._out.print(Text(line, style=style))


def make_console(log_level: str = "info") -> Console:
    """A live display if stderr is a terminal, else plain lines. `log_level` is the level of the processes' logs."""
    return LiveConsole() if sys.stderr.isatty() else Console(with_logs=log_level in ("debug", "info"))
