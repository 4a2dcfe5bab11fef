"""When rows and pages that the host has given back may be used again.

Each entry waits for the newest ticket (a launch or copy on the forward stream) that could still touch it, and until a
transfer that may still read or write it has let go. Nothing goes back to a pool by another way. What it does not know:
the pools.
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
    """`reuse_pages` and `reuse_rows` are called, in order of retirement, with what has become reusable."""

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
        """Takes charge of quarantined `pages` and `rows` until `after_ticket` has completed and nobody reads them.

        `is_read` says whether a transfer may still read or write the pages; once false it stays false.
        """
        if pages or rows:
            self._entries.append(_Entry(after_ticket, is_read, pages, rows))

    def collect(self, completed_ticket: int) -> bool:
        """Every ticket up to `completed_ticket` has completed: hands back what nothing can touch now, if anything."""
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
