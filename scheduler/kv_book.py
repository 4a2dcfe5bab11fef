"""The books of a worker's KV memory: who holds which row and pages, and when what was given back may be reused.

    admit --grow--> held --release--> retired --collect--> free

They know numbers only; no memory is touched here. Whoever runs forwards and copies takes a ticket for each from here,
and reports which are over. Row 0 and page 0 are padding and are never handed out. The states of a page:

    FREE --allocate--> RESERVED or OWNED --retire (last reference)--> QUARANTINED --reuse--> FREE
                          RESERVED --own--> OWNED

Pages of the n choices of one prompt:

    choice 0   [full prompt pages][partial page][output pages]
    choice c   [same, shared     ][a copy of it ][own output pages]
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from protocol.kv_layout import full_pages, pages_for, pages_for_choices
from protocol.messages_gateway import KvPages

IsRead = Callable[[], bool]


class PageState(IntEnum):
    """The state of a page."""

    FREE = 0
    RESERVED = 1  # promised to a request whose KV has not arrived
    OWNED = 2  # holds KV of at least one request
    QUARANTINED = 3  # given back, but something in flight may still touch it


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


@dataclass(frozen=True)
class Retired:
    """Rows and pages that were given back. They are reused once a launch or copy is over, and no transfer touches them.

    Once `is_read` is false it stays false.
    """

    after_ticket: int
    is_read: IsRead | None
    pages: Sequence[int] = ()
    rows: Sequence[int] = ()

    def is_over(self, completed_ticket: int) -> bool:
        """Whether nothing can touch them once all tickets up to `completed_ticket` are over."""
        return self.after_ticket <= completed_ticket and (self.is_read is None or not self.is_read())


class KvBook:
    """Rows for `max_requests` choices of up to `max_context` tokens, over `num_pages` pages of `page_size` tokens.

    `num_pages` counts page 0.
    """

    def __init__(self, num_pages: int, page_size: int, *, max_requests: int, max_context: int) -> None:
        self.page_size = page_size
        self.max_requests = max_requests
        self.max_pages = pages_for(max_context, page_size)  # of one context
        self.pages = PageAllocator(num_pages)
        self.rows = RowPool(max_requests + 1)
        self.retired: list[Retired] = []  # oldest first
        self._held: dict[int, Holding] = {}  # by row
        self.newest_ticket = 0  # of the forwards and copies sent
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

        They are reused when nothing in flight can touch them. `is_read` tells whether a transfer may touch the pages;
        choices that share pages give the same.
        """
        if self._held.get(holding.row) is not holding:
            return
        del self._held[holding.row]
        newest = self.newest_ticket
        self.retired.append(Retired(newest, None, rows=[holding.row]))
        self.retired.append(Retired(newest, is_read, pages=self.pages.retire(holding.pages)))
        if self._completed_ticket == newest:
            self.collect(newest)

    def next_ticket(self) -> int:
        """The number of a forward or copy about to be sent. What is released from now on waits for it."""
        self.newest_ticket += 1
        return self.newest_ticket

    def collect(self, completed_ticket: int) -> bool:
        """Frees what nothing can touch once all tickets up to `completed_ticket` are over. Whether there was any."""
        self._completed_ticket = completed_ticket
        if not self.retired:
            return False
        waiting: list[Retired] = []
        for each in self.retired:
            if each.is_over(completed_ticket):
                self.pages.reuse(each.pages)
                self.rows.reuse(each.rows)
            else:
                waiting.append(each)
        found = len(waiting) < len(self.retired)
        self.retired = waiting
        return found

    def counts(self) -> KvPages:
        """The ledger of the pages."""
        return self.pages.counts()


class PageAllocator:
    """Pages [1, num_pages) of one worker. The page given back last is handed out first."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise ValueError(f"PageAllocator.num_pages: got {num_pages}, expected at least 2 (page 0 is padding)")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, 0, -1))
        self._state = [PageState.FREE] * num_pages
        self._refs = [0] * num_pages
        self._count = dict.fromkeys(PageState, 0)
        self._count[PageState.FREE] = num_pages - 1

    @property
    def num_free(self) -> int:
        """Pages that can be handed out now."""
        return len(self._free)

    def allocate(self, num: int, state: PageState = PageState.OWNED) -> list[int] | None:
        """`num` pages with one reference each, or None when fewer are free."""
        assert state in (PageState.RESERVED, PageState.OWNED), state
        if num > len(self._free):
            return None
        pages = self._free[len(self._free) - num :][::-1]
        del self._free[len(self._free) - num :]
        for page in pages:
            self._move(page, PageState.FREE, state)
            self._refs[page] = 1
        return pages

    def own(self, pages: Sequence[int]) -> None:
        """Marks reserved pages as owned: their KV has landed."""
        for page in pages:
            self._move(page, PageState.RESERVED, PageState.OWNED)

    def share(self, pages: Sequence[int]) -> None:
        """Adds one holder to each page. The ledger still counts the page once."""
        for page in pages:
            assert self._refs[page] > 0, f"page {page} is shared, but no request holds it"
            self._refs[page] += 1

    def retire(self, pages: Sequence[int]) -> list[int]:
        """Removes one holder from each page. Returns the pages without a holder: QUARANTINED until `reuse`."""
        retired: list[int] = []
        for page in pages:
            assert self._refs[page] > 0, f"page {page} is given back twice"
            self._refs[page] -= 1
            if self._refs[page] == 0:
                self._move(page, self._state[page], PageState.QUARANTINED)
                retired.append(page)
        return retired

    def reuse(self, pages: Sequence[int]) -> None:
        """Frees quarantined pages that nothing in flight can touch any more."""
        for page in pages:
            self._move(page, PageState.QUARANTINED, PageState.FREE)
        self._free.extend(pages)

    def counts(self) -> KvPages:
        """The ledger of the pool."""
        return KvPages(
            total=self.num_pages - 1,
            free=self._count[PageState.FREE],
            owned=self._count[PageState.OWNED],
            reserved=self._count[PageState.RESERVED],
            quarantined=self._count[PageState.QUARANTINED],
        )

    def _move(self, page: int, old: PageState, new: PageState) -> None:
        assert page > 0, "page 0 is padding"
        assert self._state[page] is old, f"page {page} is {self._state[page].name}, expected {old.name}"
        self._state[page] = new
        self._count[old] -= 1
        self._count[new] += 1


def allocate_choices(
    pages: PageAllocator, prompt_len: int, num_tokens: int, num_choices: int, page_size: int, state: PageState
) -> list[list[int]] | None:
    """Each choice's pages in order, or None when too few are free. A choice holds one reference to each page."""
    total = pages_for(num_tokens, page_size)
    shared = min(full_pages(prompt_len, page_size), total)
    fresh = pages.allocate(pages_for_choices(prompt_len, num_tokens, num_choices, page_size), state)
    if fresh is None:
        return None

    first, rest = fresh[:total], fresh[total:]
    choices = [first]
    for choice in range(num_choices - 1):
        pages.share(first[:shared])
        own = total - shared
        choices.append(first[:shared] + rest[choice * own : (choice + 1) * own])
    return choices


def partial_page_copies(
    first: Sequence[int], others: Sequence[Sequence[int]], prompt_len: int, page_size: int
) -> tuple[list[int], list[int]]:
    """(sources, targets): the page copies that give each of `others` its own partial prompt page."""
    index = full_pages(prompt_len, page_size)
    if index == pages_for(prompt_len, page_size):
        return [], []
    return [first[index]] * len(others), [pages[index] for pages in others]


class RowPool:
    """Rows [1, num_rows) of one worker, and how often each was handed out. The row given back last goes first."""

    def __init__(self, num_rows: int) -> None:
        if num_rows < 2:
            raise ValueError(f"RowPool.num_rows: got {num_rows}, expected at least 2 (row 0 is padding)")
        self.num_rows = num_rows
        self._free = list(range(num_rows - 1, 0, -1))
        self._in_use = [False] * num_rows
        self._generation = [0] * num_rows

    @property
    def num_free(self) -> int:
        """Rows that can be handed out now."""
        return len(self._free)

    def allocate(self) -> int:
        """A row. The caller has checked that one is free."""
        assert self._free, "the caller checks num_free"
        row = self._free.pop()
        assert row > 0 and not self._in_use[row]
        self._in_use[row] = True
        self._generation[row] += 1
        return row

    def reuse(self, rows: Sequence[int]) -> None:
        """Frees rows that nothing in flight can touch any more."""
        for row in rows:
            assert self._in_use[row], f"row {row} is given back twice"
            self._in_use[row] = False
            self._free.append(row)

    def generation(self, row: int) -> int:
        """How often the row was handed out."""
        return self._generation[row]
