"""Decides when rows and pages that were given back may be reused. They return to their pool only through this queue.

Each entry waits for the newest launch or copy that could still touch it, and for transfers that may still read or
write it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

IsRead = Callable[[], bool]


@dataclass(frozen=True)
class _Entry:
    after_ticket: int
    is_read: IsRead | None
    pages: Sequence[int]
    rows: Sequence[int]


class RetireQueue:
    """Calls `reuse_pages` and `reuse_rows` with what has become reusable, in order of retirement."""

    def __init__(
        self, reuse_pages: Callable[[Sequence[int]], None], reuse_rows: Callable[[Sequence[int]], None]
    ) -> None:
        self._reuse_pages = reuse_pages
        self._reuse_rows = reuse_rows
        self._entries: deque[_Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def retire(
        self, pages: Sequence[int], rows: Sequence[int], after_ticket: int, is_read: IsRead | None = None
    ) -> None:
        """Holds quarantined `pages` and `rows` until `after_ticket` has completed and `is_read` is false.

        `is_read` tells whether a transfer may still read or write the pages. Once false it stays false.
        """
        if pages or rows:
            self._entries.append(_Entry(after_ticket, is_read, pages, rows))

    def collect(self, completed_ticket: int) -> bool:
        """Hands back what nothing can touch once `completed_ticket` has completed. False if there was nothing."""
        if not self._entries:
            return False
        waiting: deque[_Entry] = deque()
        for entry in self._entries:
            if entry.after_ticket <= completed_ticket and (entry.is_read is None or not entry.is_read()):
                self._reuse_pages(entry.pages)
                self._reuse_rows(entry.rows)
            else:
                waiting.append(entry)
        found = len(waiting) < len(self._entries)
        self._entries = waiting
        return found
