"""Counts refused messages and connections by kind, and logs the 1st, 10th, 100th, ... of a kind.

So a flood makes a number grow and not the log.
"""

from collections import Counter
from typing import Any

from runtime.log import EventLog


class Refusals:
    """`event` is the line's name in `log`. Kinds are a few words of Baton's own, never a peer's text."""

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
