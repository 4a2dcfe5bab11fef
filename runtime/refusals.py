"""What strangers and faulty peers send in vain: counted by kind, and logged at the 1st, 10th, 100th, ... of a kind.

Whoever floods us gets a number that grows, and not the log. What it does not know: why something is refused.
"""

from collections import Counter
from typing import Any

from runtime.log import EventLog


class Refusals:
    """`event` is the line's name in `log`. Kinds are words of ours, few, never what a peer has sent."""

    def __init__(self, log: EventLog, event: str) -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._event = event

    @property
    def total(self) -> int:
        """Of every kind."""
        return self.counts.total()

    def note(self, kind: str, **fields: Any) -> None:
        """One more; `fields` stand in the line, if there is one."""
        self.counts[kind] += 1
        count = self.counts[kind]
        if count == 10 ** (len(str(count)) - 1):
            self._log.warning(self._event, kind=kind, count=count, **fields)
