"""The states of KV pages, how many hold each, and which the cache keeps. No memory is touched here.

    FREE --allocate--> RESERVED or OWNED --retire (last holder)--> QUARANTINED --reuse--> FREE
                          RESERVED --own--> OWNED                          |
                                              ^------share------ CACHED <--+  if the cache keeps it
                                                                   |
                                                                   +--drop--> FREE

Page 0 is padding and is never handed out. The retire queue decides when a quarantined page may be reused.
Pages of the n choices of one prompt:

    choice 0   [settled prompt pages][rest of the prompt][output pages]
    choice c   [same, shared        ][a copy of it      ][own output pages]

A prompt's settled pages are the full ones, without those whose KV depends on the tokens that a choice draws.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from protocol.kv_layout import pages_for, pages_for_choices, settled_pages
from protocol.worker_facts import KvPages


class PageState(IntEnum):
    """The state of a page."""

    FREE = 0
    RESERVED = 1  # promised to a request whose KV has not arrived
    OWNED = 2  # holds KV of at least one request
    QUARANTINED = 3  # given back, but something in flight may still touch it
    CACHED = 4  # holds KV for requests to come; nobody reads it


class PageAllocator:
    """Pages [1, num_pages) of one worker. The page given back last is handed out first."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise ValueError(f"PageAllocator.num_pages: got {num_pages}, expected at least 2 (page 0 is padding)")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, 0, -1))
        self._state = [PageState.FREE] * num_pages
        self._holders = [0] * num_pages
        self._retired = [0] * num_pages  # by how many holders whose launches and transfers may still touch it
        self._is_kept = bytearray(num_pages)  # by the cache
        self._count = dict.fromkeys(PageState, 0)
        self._count[PageState.FREE] = num_pages - 1

    @property
    def num_free(self) -> int:
        """Pages that can be handed out now."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that the cache can drop now."""
        return self._count[PageState.CACHED]

    def num_own(self, pages: Sequence[int]) -> int:
        """How many of these pages have one holder only."""
        return sum(self._holders[page] == 1 for page in pages)

    def num_quarantined(self, pages: Iterable[int]) -> int:
        """How many of these pages nobody holds any more."""
        return sum(self._state[page] is PageState.QUARANTINED for page in pages)

    def is_idle(self, page: int) -> bool:
        """Whether the cache can drop this page now."""
        return self._state[page] is PageState.CACHED

    def allocate(self, num: int, state: PageState = PageState.OWNED) -> list[int] | None:
        """`num` pages with one holder each, or None when fewer are free."""
        assert state in (PageState.RESERVED, PageState.OWNED), state
        if num > len(self._free):
            return None
        pages = self._free[len(self._free) - num :][::-1]
        del self._free[len(self._free) - num :]
        for page in pages:
            self._move(page, PageState.FREE, state)
            self._holders[page] = 1
        return pages

    def own(self, pages: Sequence[int]) -> None:
        """Marks reserved pages as owned: their KV has landed."""
        for page in pages:
            self._move(page, PageState.RESERVED, PageState.OWNED)

    def share(self, pages: Sequence[int]) -> None:
        """Adds one holder to each page, which somebody holds or the cache keeps. The ledger counts a page once."""
        for page in pages:
            if not self._holders[page]:
                assert self._is_kept[page], f"page {page} is shared, but nobody holds it"
                self._move(page, self._state[page], PageState.OWNED)
            self._holders[page] += 1

    def retire(self, pages: Sequence[int]) -> None:
        """Removes one holder from each page. A page without a holder is QUARANTINED until `reuse`."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is given back twice"
            self._holders[page] -= 1
            self._retired[page] += 1
            if not self._holders[page]:
                self._move(page, self._state[page], PageState.QUARANTINED)

    def reuse(self, pages: Sequence[int]) -> None:
        """What one holder of each page had in flight is over. A page that nothing else can touch is CACHED or FREE."""
        for page in pages:
            assert self._retired[page] > 0, f"page {page} is reused, but nobody has given it back"
            self._retired[page] -= 1
            if not self._holders[page] and not self._retired[page]:
                self._rest(page)

    def keep(self, pages: Sequence[int]) -> None:
        """The cache keeps these pages when their holders have given them back."""
        for page in pages:
            assert self._state[page] is PageState.OWNED, f"page {page} is kept, but it is {self._state[page].name}"
            assert not self._is_kept[page], f"page {page} is kept twice"
            self._is_kept[page] = True

    def drop(self, pages: Sequence[int]) -> None:
        """The cache keeps these pages no longer."""
        for page in pages:
            assert self._is_kept[page], f"page {page} is dropped, but the cache does not keep it"
            self._is_kept[page] = False
            if self._state[page] is PageState.CACHED:
                self._rest(page)

    def counts(self) -> KvPages:
        """The ledger of the pool."""
        return KvPages(
            total=self.num_pages - 1,
            free=self._count[PageState.FREE],
            cached=self._count[PageState.CACHED],
            owned=self._count[PageState.OWNED],
            reserved=self._count[PageState.RESERVED],
            quarantined=self._count[PageState.QUARANTINED],
        )

    def _rest(self, page: int) -> None:
        """Nothing can touch this page any more."""
        if self._is_kept[page]:
            self._move(page, self._state[page], PageState.CACHED)
        else:
            self._move(page, self._state[page], PageState.FREE)
            self._free.append(page)

    def _move(self, page: int, old: PageState, new: PageState) -> None:
        assert page > 0, "page 0 is padding"
        assert self._state[page] is old, f"page {page} is {self._state[page].name}, expected {old.name}"
        self._state[page] = new
        self._count[old] -= 1
        self._count[new] += 1


def allocate_choices(
    pages: PageAllocator,
    cached: Sequence[int],
    prompt_len: int,
    num_tokens: int,
    num_choices: int,
    page_size: int,
    lookahead: int,
    state: PageState,
) -> list[list[int]] | None:
    """Each choice's pages in order, or None when too few are free. A choice holds each of its pages once.

    The first pages are `cached`, which the caller shares with the first choice.
    """
    total = pages_for(num_tokens, page_size)
    shared = min(settled_pages(prompt_len, page_size, lookahead), total)
    needed = pages_for_choices(prompt_len, num_tokens, num_choices, page_size, lookahead)
    fresh = pages.allocate(needed - len(cached), state)
    if fresh is None:
        return None

    first = [*cached, *fresh[: total - len(cached)]]
    rest = fresh[total - len(cached) :]
    choices = [first]
    for choice in range(num_choices - 1):
        pages.share(first[:shared])
        num_unshared = total - shared
        choices.append(first[:shared] + rest[choice * num_unshared : (choice + 1) * num_unshared])
    return choices


class PageCopies(NamedTuple):
    """Each page of `sources` is copied to the one at its place in `targets`."""

    sources: list[int]
    targets: list[int]


def prompt_copies(
    first: Sequence[int], others: Sequence[Sequence[int]], prompt_len: int, page_size: int, lookahead: int
) -> PageCopies:
    """The page copies that give each of `others` the prompt's pages that choices do not share."""
    unsettled = slice(settled_pages(prompt_len, page_size, lookahead), pages_for(prompt_len, page_size))
    return PageCopies(list(first[unsettled]) * len(others), [page for pages in others for page in pages[unsettled]])
