"""The books of a worker's KV memory: who holds which row and pages, and when what was given back may be reused.

    admit --grow--> held --release--> retired --collect--> free

It knows numbers only. Whoever runs forwards and copies takes a ticket for each from here, and reports which are over.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.kv_layout import pages_for, pages_for_choices
from protocol.messages_gateway import KvPages
from scheduler.page_allocator import PageAllocator, PageState, allocate_choices
from scheduler.retire_queue import IsRead, RetireQueue
from scheduler.row_pool import RowPool


@dataclass(eq=False)
class Holding:
    """The row of one choice and its pages, in the order of its context. Only the book adds pages."""

    row: int
    generation: int  # of the row
    pages: list[int]
    num_granted: int = 0  # pages that the executor was told of; the planner's

    @property
    def owner(self) -> tuple[int, int]:
        """(row, generation): the row as it was handed out once."""
        return self.row, self.generation


class KvBook:
    """Rows for `max_requests` choices of up to `max_context` tokens, over `num_pages` pages of `page_size` tokens.

    Row 0 and page 0 are padding; `num_pages` counts page 0.
    """

    def __init__(self, num_pages: int, page_size: int, *, max_requests: int, max_context: int) -> None:
        self.page_size = page_size
        self.max_requests = max_requests
        self.max_pages = pages_for(max_context, page_size)  # of one context
        self.pages = PageAllocator(num_pages)
        self.rows = RowPool(max_requests + 1)
        self.retired = RetireQueue(self.pages.reuse, self.rows.reuse)
        self._held: dict[int, Holding] = {}  # by row
        self._newest_ticket = 0
        self._completed_ticket = 0

    def never_fits(self, prompt_len: int, num_tokens: int, num_choices: int) -> str | None:
        """Why `num_choices` contexts of `num_tokens` tokens do not fit even on an idle worker, or None."""
        needed, total = pages_for_choices(prompt_len, num_tokens, num_choices, self.page_size), self.pages.num_pages - 1
        longest = self.max_pages * self.page_size
        if num_tokens > longest:
            return f"the request needs a context of {num_tokens} tokens, this worker takes at most {longest}"
        if needed > total:
            return f"the request needs {needed} KV pages, this worker has {total}"
        return None

    def admit(
        self, prompt_len: int, num_tokens: int, num_choices: int, state: PageState = PageState.OWNED
    ) -> tuple[Holding, ...] | None:
        """A holding for `num_tokens` tokens per choice, or None when too few rows or pages are free.

        The choices share the prompt's full pages.
        """
        if num_choices > self.rows.num_free:
            return None
        choices = allocate_choices(self.pages, prompt_len, num_tokens, num_choices, self.page_size, state)
        if choices is None:
            return None

        holdings: list[Holding] = []
        for pages in choices:
            assert len(pages) <= self.max_pages, "the caller checks never_fits"
            row = self.rows.allocate()
            holdings.append(Holding(row, self.rows.generation(row), pages))
        self._held.update((holding.row, holding) for holding in holdings)
        return tuple(holdings)

    def own(self, holdings: Iterable[Holding]) -> None:
        """Marks their reserved pages as owned: their KV has landed."""
        self.pages.own(list(dict.fromkeys(page for holding in holdings for page in holding.pages)))

    def grow(self, holding: Holding, num_tokens: int) -> list[int] | None:
        """Adds pages until `num_tokens` tokens fit. Returns the added ones, or None when too few are free.

        The added pages are owned: a context grows where it is computed.
        """
        assert self._held.get(holding.row) is holding, f"row {holding.row} grows for a holding that was given back"
        needed = pages_for(num_tokens, self.page_size)
        assert needed <= self.max_pages, "the caller checks never_fits"
        added = self.pages.allocate(max(0, needed - len(holding.pages)))
        if added is not None:
            holding.pages.extend(added)
        return added

    def release(self, holding: Holding, is_read: IsRead | None = None) -> None:
        """Gives back a row and one reference to each of its pages. A second call does nothing.

        They are reused when nothing in flight can touch them. `is_read` tells whether a transfer may touch the pages.
        """
        if self._held.get(holding.row) is not holding:
            return
        del self._held[holding.row]
        newest = self._newest_ticket
        self.retired.retire((), [holding.row], newest)
        self.retired.retire(self.pages.retire(holding.pages), (), newest, is_read)
        if self._completed_ticket == newest:
            self.collect(newest)

    def next_ticket(self) -> int:
        """The number of a forward or copy about to be sent. What is released from now on waits for it."""
        self._newest_ticket += 1
        return self._newest_ticket

    @property
    def newest_ticket(self) -> int:
        """The ticket of the newest forward or copy; 0 before the first."""
        return self._newest_ticket

    def collect(self, completed_ticket: int) -> bool:
        """Frees what nothing can touch once all tickets up to `completed_ticket` are over. Whether there was any."""
        self._completed_ticket = completed_ticket
        return self.retired.collect(completed_ticket)

    def counts(self) -> KvPages:
        """The ledger of the pages."""
        return self.pages.counts()
