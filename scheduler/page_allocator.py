"""The states and reference counts of KV pages. No memory is touched here.

    FREE --allocate--> RESERVED or OWNED --retire (last reference)--> QUARANTINED --reuse--> FREE
                          RESERVED --own--> OWNED

Page 0 is padding and is never handed out. The retire queue decides when a quarantined page may be reused.
Pages of the n choices of one prompt:

    choice 0   [full prompt pages][partial page][output pages]
    choice c   [same, shared     ][a copy of it ][own output pages]
"""

from collections.abc import Sequence
from enum import IntEnum

from protocol.kv_layout import full_pages, pages_for, pages_for_choices
from protocol.messages_gateway import KvPages


class PageState(IntEnum):
    """The state of a page."""

    FREE = 0
    RESERVED = 1  # promised to a request whose KV has not arrived
    OWNED = 2  # holds KV of at least one request
    QUARANTINED = 3  # given back, but something in flight may still touch it


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

    def check(self) -> None:
        """Asserts that the ledger adds up, and that counts, states, references and the free list agree."""
        assert sum(self._count.values()) == self.num_pages - 1, self._count
        assert len(set(self._free)) == len(self._free) == self._count[PageState.FREE]
        assert 0 not in self._free
        assert not [page for page in self._free if self._state[page] is not PageState.FREE or self._refs[page]]

        held = [state is PageState.RESERVED or state is PageState.OWNED for state in self._state]
        assert held[1:] == [refs > 0 for refs in self._refs[1:]]

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
