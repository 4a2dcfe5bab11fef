"""Manages a worker's KV memory: which choice holds which row and pages, and when what was given back may be reused.

    admit --grow--> held --release--> retired --collect--> free

It knows numbers only; no memory is touched here. The planner takes a ticket for each forward and copy, and reports
which are over. Row 0 and page 0 are padding and are never handed out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from protocol.kv_layout import full_pages, pages_for, pages_for_choices, settled_pages
from protocol.prefixes import ID_BYTES
from protocol.worker_facts import KvPages
from scheduler.planning.kv_pages import PageAllocator, PageState, allocate_choices
from scheduler.planning.prefix_cache import PrefixCache
from scheduler.planning.prefix_news import PrefixNews

IsRead = Callable[[], bool]


@dataclass(eq=False)
class Holding:
    """The row of one choice and its pages, in the order of its context. Only the KV manager adds pages."""

    row: int
    owner_number: int  # of the row
    pages: list[int]
    max_pages: int  # that it may grow to
    num_cached: int = 0  # tokens whose KV was in the cache
    flushes: int = 0  # of the cache, before it was admitted
    num_granted: int = 0  # pages that the executor was told of; the planner's
    has_draft: bool = True  # all its pages hold KV of the draft, if there is a draft

    @property
    def owner(self) -> tuple[int, int]:
        """(row, owner_number): the row as it was handed out once."""
        return self.row, self.owner_number

    def goes_on_from(self, left: "Holding") -> None:
        """Takes over what is known of the KV that is copied here from `left`."""
        self.flushes, self.has_draft = left.flushes, left.has_draft


@dataclass(frozen=True)
class Retired:
    """Rows and pages that were given back. They are reused once a launch or copy is over, and no transfer touches them.

    Once `is_read` is false it stays false.
    """

    after_ticket: int
    is_read: IsRead | None
    pages: Sequence[int] = ()
    rows: Sequence[int] = ()
    host_pages: Sequence[int] = ()  # of host memory

    def is_over(self, completed_ticket: int) -> bool:
        """Whether nothing can touch them once all tickets up to `completed_ticket` are over."""
        return self.after_ticket <= completed_ticket and (self.is_read is None or not self.is_read())


@dataclass(frozen=True)
class CacheKey:
    """The tokens of a context as the cache knows them. Contexts with different salts share nothing."""

    ids: bytes  # from protocol.prefixes.packed
    salt: str


class KvManager:
    """Rows for `max_requests` choices of up to `max_context` tokens, over `num_pages` pages of `page_size` tokens.

    `num_pages` counts page 0. `margin`: for so many more tokens of each context there is room when another is admitted;
    it is counted, not set aside. `caches`: KV stays for prompts that begin the same way, until somebody needs its
    pages. `num_host_pages`: pages of KV that fit into host memory, with page 0. `lookahead`: the layout's; pages whose
    KV depends on tokens to come are neither cached nor shared.

    Some cached pages may lack the draft's KV. A prompt with a draft finds none of them, and what it computes takes
    their place in the cache, unless somebody reads pages behind them. A prompt without one finds all.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        max_requests: int,
        max_context: int,
        margin: int = 0,
        caches: bool = False,
        num_host_pages: int = 0,
        lookahead: int = 0,
    ) -> None:
        self.page_size = page_size
        self.lookahead = lookahead
        self.margin = margin
        self.max_requests = max_requests
        self.max_pages = pages_for(max_context, page_size)  # of one context
        self.pages = PageAllocator(num_pages)
        self.host_pages = PageAllocator(num_host_pages) if num_host_pages else None
        self.rows = RowPool(max_requests + 1)
        self.retired: list[Retired] = []  # oldest first
        self._cache = PrefixCache(page_size, self.pages.is_idle, lookahead) if caches else None
        self._bare = set[int]()  # cached pages without the draft's KV
        self.news = PrefixNews(page_size)
        self._flushes = 0
        self._claimed = 0  # pages of the margins of all holdings
        self._held: dict[int, Holding] = {}  # by row
        self.newest_ticket = 0  # of the forwards and copies sent
        self._completed_ticket = 0

    def never_fits(self, prompt_len: int, num_tokens: int, num_choices: int) -> str | None:
        """Why `num_choices` contexts of `num_tokens` tokens do not fit even on an idle worker, or None."""
        needed = pages_for_choices(prompt_len, num_tokens, num_choices, self.page_size, self.lookahead)
        total = self.pages.num_pages - 1
        longest = self.max_pages * self.page_size
        if num_tokens > longest:
            return f"the request needs a context of {num_tokens} tokens, this worker takes at most {longest}"
        if needed > total:
            return f"the request needs {needed} KV pages, this worker has {total}"
        return None

    def admit(
        self,
        prompt_len: int,
        num_tokens: int,
        num_choices: int,
        state: PageState = PageState.OWNED,
        key: CacheKey | None = None,
        max_tokens: int = 0,
        alignment: int = 0,
        *,
        has_draft: bool = True,
    ) -> tuple[Holding, ...] | None:
        """A holding for `num_tokens` tokens per choice, or None when too few rows or pages are free. `has_draft`: see
        Holding.

        A context may grow to `max_tokens` tokens. Unless nobody holds anything, the margins of all must fit too.

        The choices share the prompt's settled pages, the first of which hold KV already if the cache has them. What is
        taken from the cache is a multiple of `alignment` tokens. For a prompt that is computed here `alignment` is 0,
        and at least one token is left.
        """
        if num_choices > self.rows.num_free:
            return None
        cached = self._find(key, prompt_len, alignment, has_draft=has_draft)
        self.pages.share(cached)  # before others are dropped
        shape = prompt_len, num_tokens, num_choices, self.page_size, self.lookahead
        needed = pages_for_choices(*shape) - len(cached)
        max_pages = pages_for(max(num_tokens, max_tokens), self.page_size)
        margins = num_choices * self._claim(pages_for(num_tokens, self.page_size), max_pages)
        choices = None
        if not self._held or needed + margins + self._claimed <= self.pages.num_free + self.pages.num_cached:
            self._drop(needed)
            choices = allocate_choices(self.pages, cached, *shape, state)
        if choices is None:
            self.pages.retire(cached)
            self.pages.reuse(cached)
            return None

        holdings: list[Holding] = []
        for pages in choices:
            assert len(pages) <= self.max_pages, "the caller checks never_fits"
            row = self.rows.allocate()
            holding = Holding(row, self.rows.owner_number(row), pages, max_pages, has_draft=has_draft)
            holding.num_cached, holding.flushes = len(cached) * self.page_size, self._flushes
            holdings.append(holding)
        self._held.update((holding.row, holding) for holding in holdings)
        self._claimed += margins
        return tuple(holdings)

    def num_cached(self, key: CacheKey | None, alignment: int = 0, *, has_draft: bool) -> int:
        """Tokens of the prompt `key` that `admit` would find cached. Asking is no use of them."""
        if self._cache is None or key is None:
            return 0
        num_known = self._cache.num_known(key.ids, key.salt, self._bare if has_draft else frozenset())
        return self._num_usable(num_known, len(key.ids) // ID_BYTES, alignment) * self.page_size

    def _find(self, key: CacheKey | None, prompt_len: int, alignment: int, *, has_draft: bool) -> list[int]:
        """The cached pages that a prompt can begin with."""
        if self._cache is None or key is None:
            return []
        pages = self._cache.match(key.ids, key.salt)
        if has_draft:
            pages = self._with_draft(pages)
        return pages[: self._num_usable(len(pages), prompt_len, alignment)]

    def _num_usable(self, num_pages: int, prompt_len: int, alignment: int) -> int:
        """How many of so many cached pages a prompt can begin with; see `admit`."""
        num_tokens = min(num_pages * self.page_size, prompt_len if alignment else prompt_len - 1)
        return full_pages(num_tokens - num_tokens % alignment if alignment else num_tokens, self.page_size)

    def _drop(self, needed: int) -> None:
        """Drops cached pages, if `needed` pages are then free."""
        short = needed - self.pages.num_free
        if self._cache is not None and 0 < short <= self.pages.num_cached:
            self._take_out(self._cache.evict(short))

    def _take_out(self, pages: Sequence[int]) -> None:
        """The cache has given these pages up."""
        self.pages.drop(pages)
        self._bare.difference_update(pages)
        self.news.dropped(pages)

    def _with_draft(self, pages: list[int]) -> list[int]:
        """The first of these cached pages, as far as they hold KV of the draft."""
        return list(takewhile(lambda page: page not in self._bare, pages)) if self._bare else pages

    def keep(self, holding: Holding, key: CacheKey) -> None:
        """Adds the settled pages of `key` to the cache: their KV is written and right.

        What was admitted before the newest flush adds nothing. Nor does a context whose first tokens the cache has in
        other pages, unless its own take the places of pages without the draft's KV.
        """
        assert self._held.get(holding.row) is holding, f"row {holding.row} keeps pages that were given back"
        if self._cache is None or holding.flushes != self._flushes:
            return
        known = self._cache.match(key.ids, key.salt)
        wanted = self._with_draft(known) if holding.has_draft else known
        if wanted != holding.pages[: len(wanted)]:
            return  # it does not hold the pages that its own would follow in the cache, so they could leave before
        if len(wanted) < len(known):
            replaced = self._cache.replace(key.ids, holding.pages, key.salt, len(wanted))
            if replaced is None:
                return
            self._take_out(replaced)
            known = wanted
        self._cache.insert(key.ids, holding.pages, key.salt)
        num_kept = settled_pages(len(key.ids) // ID_BYTES, self.page_size, self.lookahead)
        self.pages.keep(holding.pages[len(known) : num_kept])
        if not holding.has_draft:
            self._bare.update(holding.pages[len(known) : num_kept])
        self.news.added(key.ids[: num_kept * self.page_size * ID_BYTES], key.salt, holding.pages, len(known))

    def report_to(self, hash_key: bytes) -> None:
        """Tells a gateway what is cached from now on. Forgets what was cached under another gateway."""
        if hash_key != self.news.key:
            self.flush()
            self.news = PrefixNews(self.page_size, hash_key)

    @property
    def caches(self) -> bool:
        """Whether it keeps KV for requests to come."""
        return self._cache is not None

    def flush(self) -> None:
        """Forgets everything that is cached."""
        self._flushes += 1
        if self._cache is not None:
            self.pages.drop(self._cache.clear())
            self._bare.clear()
            self.news.flushed()

    def own(self, holdings: Iterable[Holding]) -> None:
        """Marks their reserved pages as owned: their KV has landed."""
        pages = dict.fromkeys(
            page for holding in holdings for page in holding.pages[full_pages(holding.num_cached, self.page_size) :]
        )
        self.pages.own(list(pages))

    def grow(self, holding: Holding, num_tokens: int) -> list[int] | None:
        """Adds pages until `num_tokens` tokens fit. Returns the added ones, or None when too few are free.

        The added pages are owned: a context grows where it is computed.
        """
        assert self._held.get(holding.row) is holding, f"row {holding.row} grows for a holding that was given back"
        needed = pages_for(num_tokens, self.page_size)
        assert needed <= self.max_pages, "the caller checks never_fits"
        missing = max(0, needed - len(holding.pages))
        self._drop(missing)
        added = self.pages.allocate(missing)
        if added is not None:
            self._claimed -= self._claim(len(holding.pages), holding.max_pages)
            holding.pages.extend(added)
            self._claimed += self._claim(len(holding.pages), holding.max_pages)
        return added

    def forget_drafts(self) -> None:
        """No holding has KV of the draft in all its pages any more. What is cached stays as it is."""
        for holding in self._held.values():
            holding.has_draft = False

    def _claim(self, num_pages: int, max_pages: int) -> int:
        """The pages of a context's margin: fewer near its end."""
        return max(0, min(pages_for(self.margin, self.page_size), max_pages - num_pages))

    @property
    def num_coming(self) -> int:
        """Pages that are free once the launches and copies in flight are over."""
        return self.pages.num_quarantined(
            {page for entry in self.retired if entry.is_over(self.newest_ticket) for page in entry.pages}
        )

    def release(self, holding: Holding, is_read: IsRead | None = None) -> None:
        """Gives back a row and one reference to each of its pages. A second call does nothing.

        They are reused when nothing in flight can touch them. `is_read` tells whether a transfer may touch the pages;
        choices that share pages give the same.
        """
        if self._held.get(holding.row) is not holding:
            return
        del self._held[holding.row]
        self._claimed -= self._claim(len(holding.pages), holding.max_pages)
        newest = self.newest_ticket
        self.retired.append(Retired(newest, None, rows=[holding.row]))
        self.pages.retire(holding.pages)
        self.retired.append(Retired(newest, is_read, pages=holding.pages))
        if self._completed_ticket == newest:
            self.collect(newest)

    def take_host_pages(self, num_tokens: int) -> list[int] | None:
        """Slots of host memory for the KV of `num_tokens` tokens, or None when too few are free."""
        return None if self.host_pages is None else self.host_pages.allocate(pages_for(num_tokens, self.page_size))

    def give_host_pages(self, host_pages: Sequence[int]) -> None:
        """Gives host pages back. They are reused when no copy in flight can touch them."""
        assert self.host_pages is not None
        self.host_pages.retire(host_pages)
        self.retired.append(Retired(self.newest_ticket, None, host_pages=host_pages))

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
        for entry in self.retired:
            if entry.is_over(completed_ticket):
                self.pages.reuse(entry.pages)
                self.rows.reuse(entry.rows)
                if self.host_pages is not None:
                    self.host_pages.reuse(entry.host_pages)
            else:
                waiting.append(entry)
        is_any_free = len(waiting) < len(self.retired)
        self.retired = waiting
        return is_any_free

    def counts(self) -> KvPages:
        """The ledger of the pages."""
        return self.pages.counts()

    def host_page_counts(self) -> KvPages:
        """The ledger of the host pages."""
        return KvPages(0, 0) if self.host_pages is None else self.host_pages.counts()


class RowPool:
    """Rows [1, num_rows) of one worker, and how often each was handed out. The row given back last goes first."""

    def __init__(self, num_rows: int) -> None:
        if num_rows < 2:
            raise ValueError(f"RowPool.num_rows: got {num_rows}, expected at least 2 (row 0 is padding)")
        self.num_rows = num_rows
        self._free = list(range(num_rows - 1, 0, -1))
        self._in_use = [False] * num_rows
        self._owner_number = [0] * num_rows

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
        self._owner_number[row] += 1
        return row

    def reuse(self, rows: Sequence[int]) -> None:
        """Frees rows that nothing in flight can touch any more."""
        for row in rows:
            assert self._in_use[row], f"row {row} is given back twice"
            self._in_use[row] = False
            self._free.append(row)

    def owner_number(self, row: int) -> int:
        """How often the row was handed out."""
        return self._owner_number[row]
