"""Structured logs: one line per event on stderr, `time level process event key=value ...`, through stdlib logging.

Secrets and clients' texts never reach a log: values of fields with such names are withheld here. `Refusals` counts what
is refused, so that a flood makes a number grow and not the log.
"""

import json
import logging
from collections import Counter
from datetime import UTC, datetime
from functools import partialmethod
from typing import Any, TextIO

WITHHELD = frozenset(
    "prompt prompts prompt_ids messages content text token_ids output stop".split()
    + "api_key authorization password secret".split()
)
MAX_VALUE_CHARS = 400
MAX_TRACEBACK_CHARS = 8000  # only the end is kept
_ROOT = "baton"
_FIELDS = "baton_fields"


class EventLog:
    """Logs events by name with fields: `log.info("registered", worker="decode-0", kv_pages=512)`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def _write(self, level: int, event: str, /, *, _traceback: bool = False, **fields: Any) -> None:
        self._logger.log(level, event, extra={_FIELDS: fields}, exc_info=_traceback)

    debug = partialmethod(_write, logging.DEBUG)  # a detail that helps to find a fault
    info = partialmethod(_write, logging.INFO)  # an operator may want to know it
    warning = partialmethod(_write, logging.WARNING)  # something is wrong, and Baton continues
    error = partialmethod(_write, logging.ERROR)  # a request or a process fails
    exception = partialmethod(_write, logging.ERROR, _traceback=True)  # the same, inside an except clause


def get_log(name: str) -> EventLog:
    """The log of one module. Lines appear after `start_log` was called in this process."""
    return EventLog(logging.getLogger(f"{_ROOT}.{name}"))


def start_log(process: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Sends the logs of this process and of libraries to `stream` (default stderr). `process` names it in each line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(process))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)  # of libraries: warnings and worse
    logging.getLogger(_ROOT).setLevel(level.upper())
    logging.captureWarnings(True)


class LineFormatter(logging.Formatter):
    """Formats an event and its traceback as one line, whatever they contain."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """`2026-01-31T12:00:00.000Z info decode-0 registered kv_pages=512`."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        fields: dict[str, Any] = getattr(record, _FIELDS, {})
        event = record.getMessage()
        if not record.name.startswith(_ROOT):  # a library logs sentences, not events
            event, fields = record.name, {"says": event}
        parts = [f"{at}Z", record.levelname.lower(), self._process, event]
        parts += [f"{name}={_show(name, value)}" for name, value in fields.items()]
        line = " ".join(parts)
        if record.exc_info:
            line += f" traceback={json.dumps(self.formatException(record.exc_info)[-MAX_TRACEBACK_CHARS:])}"
        return line


def _show(name: str, value: Any) -> str:
    if name in WITHHELD:
        return "<withheld>"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if len(text) > MAX_VALUE_CHARS:
        text = text[:MAX_VALUE_CHARS] + "..."
    if text and text.isprintable() and not any(mark in text for mark in ' "='):
        return text
    return json.dumps(text)


class Refusals:
    """Counts refused messages and connections by kind, and logs the 1st, 10th, 100th, ... of a kind. `event` is the
    line's name in `log`. Kinds are a few words of Baton's own, never a peer's text."""

    def __init__(self, log: EventLog, event: str) -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._event = event

    @property
    def total(self) -> int:
        """The sum over all kinds."""
        return self.counts.total()

    def note(self, kind: str, **fields: Any) -> None:
        """Counts one refusal. `fields` are logged with it, if it is logged."""
        self.counts[kind] += 1
        count = self.counts[kind]
        if count == 10 ** (len(str(count)) - 1):
            self._log.warning(self._event, kind=kind, count=count, **fields)
