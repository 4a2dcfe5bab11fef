"""The KV manager against a model of it, and each rule alone."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as check_state_machine

from protocol.kv_layout import pages_for, pages_for_choices
from protocol.prefixes import packed
from scheduler.planning.kv_manager import CacheKey, Holding, KvManager, RowPool
from scheduler.planning.kv_pages import PageState
from tests.doubles.page_ledger import check_pages
from tests.scheduler.kv_managers import OWNED, PAGE_SIZE, RESERVED, admitted, make_kv_manager


@dataclass
class Writer:
    """The transfer into one admission, which may write its pages after they were released."""

    writes: bool = True

    def __call__(self) -> bool:
        return self.writes


class Books(RuleBasedStateMachine):
    """Random legal calls. The model keeps every holding, and what each released one still waits for."""

    ahead = 0

    def __init__(self) -> None:
        super().__init__()
        self.kv_manager = make_kv_manager(caches=True, lookahead=self.ahead)
        self.prompts: dict[Holding, tuple[str, tuple[int, ...]]] = {}  # salt and ids
        self.written: dict[int, tuple[str, tuple[int, ...]]] = {}  # by page: salt, and the ids that its KV depends on
        self.flushed: set[Holding] = set()  # admitted before the newest flush
        self.held: dict[tuple[Holding, ...], PageState] = {}  # by what one admission gave
        self.writers: dict[Holding, Writer] = {}  # the choices of an admission have one transfer
        self.gone: set[Holding] = set()
        self.released: list[Holding] = []
        self.in_use: list[tuple[Holding, int, Writer]] = []  # released; the ticket and the writer it waits for
        self.sent = self.over = 0
        self.owner_numbers: Counter[int] = Counter()

    @property
    def holdings(self) -> list[Holding]:
        return [held for group in self.held for held in group if held not in self.gone]

    @rule(
        prompt=st.sampled_from([3, 8, 9, 12, 16, 17]),
        family=st.integers(1, 2),
        salt=st.sampled_from(["", "", "a"]),
        outputs=st.integers(0, 9),
        n=st.sampled_from([1, 1, 3]),
        state=st.sampled_from([OWNED, OWNED, RESERVED]),
        writes=st.booleans(),
    )
    def admit(self, prompt: int, family: int, salt: str, outputs: int, n: int, state: PageState, writes: bool) -> None:
        """Prompts of all families have their first two pages in common."""
        ids = tuple(0 if index < 8 else family for index in range(prompt))
        before, rows = self.kv_manager.counts(), self.kv_manager.rows.num_free
        assert self.kv_manager._cache is not None
        hit = self.kv_manager._cache.match(packed(ids), salt)[: (prompt - 1) // PAGE_SIZE]
        idle = sum(map(self.kv_manager.pages.is_idle, hit))

        got = self.kv_manager.admit(prompt, prompt + outputs, n, state, CacheKey(packed(ids), salt))
        needed = pages_for_choices(prompt, prompt + outputs, n, PAGE_SIZE, self.ahead) - len(hit)
        room = before.free + before.cached - idle
        assert (got is not None) == (n <= rows and needed <= room)
        after = self.kv_manager.counts()
        assert after.free + after.cached == (room - needed if got else before.free + before.cached)
        for holding in got or ():
            self.owner_numbers[holding.row] += 1
            assert holding.owner_number == self.owner_numbers[holding.row]
            settled, first = max(prompt - self.ahead, 0) // PAGE_SIZE, (got or ())[0]
            assert holding.pages[:settled] == first.pages[:settled]
            assert holding is first or not set(holding.pages[settled:]) & set(first.pages[settled:])
            assert holding.pages[: len(hit)] == hit and holding.num_cached == len(hit) * PAGE_SIZE < prompt
            self.prompts[holding] = salt, ids
        if got:
            self.held[got] = state
            self.writers |= dict.fromkeys(got, Writer(writes))
            for index, page in enumerate(hit):
                assert self.written[page] == (salt, self.read_by(ids, index)), "it holds the KV of other tokens"
                assert len(self.read_by(ids, index)) == (index + 1) * PAGE_SIZE + self.ahead, "it depends on more"
            self.allocated(got[0].pages[len(hit) :])

    def read_by(self, ids: tuple[int, ...], index: int) -> tuple[int, ...]:
        """The ids that the KV of a context's page depends on, as far as they are known."""
        return ids[: (index + 1) * PAGE_SIZE + self.ahead]

    def allocated(self, pages: list[int]) -> None:
        """What was written to these pages is lost."""
        for page in pages:
            self.written.pop(page, None)

    @precondition(lambda self: OWNED in self.held.values())
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """The KV of a prompt is written, and its pages are kept."""
        group = data.draw(st.sampled_from([group for group, state in self.held.items() if state is OWNED]))
        holding, cached = group[0], self.kv_manager.counts().cached
        if holding in self.gone:
            return
        salt, ids = self.prompts[holding]
        for index in range(holding.num_cached // PAGE_SIZE, len(ids) // PAGE_SIZE):
            self.written[holding.pages[index]] = salt, self.read_by(ids, index)
        assert self.kv_manager._cache is not None
        before = self.kv_manager._cache.num_pages
        self.kv_manager.keep(holding, CacheKey(packed(ids), salt))
        assert holding not in self.flushed or self.kv_manager._cache.num_pages == before, "it began before the flush"
        cached_pages = self.kv_manager._cache.match(packed(ids), salt)
        is_own = cached_pages == holding.pages[: len(cached_pages)]
        settled = max(len(ids) - self.ahead, 0) // PAGE_SIZE
        assert holding in self.flushed or not is_own or len(cached_pages) == settled
        for index, page in enumerate(cached_pages):
            assert self.written[page] == (salt, self.read_by(ids, index))
            assert holding in self.flushed or not is_own or self.kv_manager.pages._holders[page], "it may leave"
        assert self.kv_manager.counts().cached <= cached

    @rule()
    def flush(self) -> None:
        self.kv_manager.flush()
        self.flushed.update(self.holdings)
        assert self.kv_manager.counts().cached == 0

    @precondition(lambda self: RESERVED in self.held.values())
    @rule(data=st.data())
    def own(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from([group for group, state in self.held.items() if state is RESERVED]))
        self.kv_manager.own(held for held in group if held not in self.gone)
        self.held[group] = OWNED

    @precondition(lambda self: OWNED in self.held.values())
    @rule(data=st.data(), tokens=st.integers(0, 64))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        groups = [group for group, state in self.held.items() if state is OWNED]
        holding = data.draw(st.sampled_from([held for held in self.holdings if any(held in group for group in groups)]))
        before, free = list(holding.pages), self.kv_manager.counts().free + self.kv_manager.counts().cached
        missing = max(0, pages_for(tokens, PAGE_SIZE) - len(before))
        added = self.kv_manager.grow(holding, tokens)
        assert (added is None) == (missing > free)
        assert holding.pages == before + (added or [])
        assert added is None or len(added) == missing
        self.allocated(added or [])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holding = data.draw(st.sampled_from(self.holdings))
        writer = self.writers[holding]
        self.kv_manager.release(holding, writer)
        self.gone.add(holding)
        self.released.append(holding)
        self.in_use.append((holding, self.sent, writer))
        for group in [group for group in self.held if self.gone.issuperset(group)]:
            del self.held[group]

    @precondition(lambda self: self.released)
    @rule(data=st.data())
    def release_twice(self, data: st.DataObject) -> None:
        before = self.kv_manager.counts(), self.kv_manager.rows.num_free
        self.kv_manager.release(data.draw(st.sampled_from(self.released)))
        assert (self.kv_manager.counts(), self.kv_manager.rows.num_free) == before

    @rule()
    def send(self) -> None:
        self.sent += 1
        assert self.kv_manager.next_ticket() == self.kv_manager.newest_ticket == self.sent

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self.over = data.draw(st.integers(self.over, self.sent))
        self.kv_manager.collect(self.over)

    @precondition(lambda self: self.in_use)
    @rule(data=st.data())
    def writer_ends(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.in_use))[2].writes = False
        self.kv_manager.collect(self.over)

    @invariant()
    def ledger(self) -> None:
        check_pages(self.kv_manager.pages)
        holders = Counter(page for holding in self.holdings for page in holding.pages)
        assert [holders[page] for page in range(20)] == self.kv_manager.pages._holders
        counts = self.kv_manager.counts()
        assert counts.total == counts.free + counts.cached + counts.owned + counts.reserved + counts.quarantined == 19
        waiting = [held for group, state in self.held.items() if state is RESERVED for held in group]
        reserved = {
            page
            for holding in waiting
            if holding not in self.gone
            for page in holding.pages[holding.num_cached // PAGE_SIZE :]
        }
        assert counts.reserved == len(reserved)
        assert counts.owned == len(holders) - counts.reserved

    @invariant()
    def what_may_be_touched_is_not_free(self) -> None:
        rows = {holding.row for holding in self.holdings}
        waits = [
            (holding, writer.writes) for holding, ticket, writer in self.in_use if ticket > self.over or writer.writes
        ]
        touched = {page for holding, _ in waits for page in holding.pages}
        assert not touched & set(self.kv_manager.pages._free)
        assert not any(map(self.kv_manager.pages.is_idle, touched))
        assert len(rows) == len(self.holdings)
        rows_waiting = {holding.row for holding, ticket, _ in self.in_use if ticket > self.over}
        assert not (rows | rows_waiting) & set(self.kv_manager.rows._free)
        assert self.kv_manager.rows.num_free == 5 - len(rows | rows_waiting)
        self.in_use = [use for use in self.in_use if use[1] > self.over or use[2].writes]


def test_only_who_holds_a_row_grows_in_it() -> None:
    kv_manager = make_kv_manager()
    (holding,) = admitted(kv_manager, 3, 4)
    kv_manager.release(holding)
    (next_one,) = admitted(kv_manager, 3, 4)
    assert next_one.row == holding.row
    with pytest.raises(AssertionError, match=f"row {holding.row} grows for a holding that was given back"):
        kv_manager.grow(holding, 8)


@pytest.mark.parametrize(
    "prompt,tokens,n,reason",
    [
        (4, 64, 1, None),
        (4, 65, 1, "the request needs a context of 65 tokens, this worker takes at most 64"),
        (4, 40, 2, None),
        (4, 44, 2, "the request needs 21 KV pages, this worker has 19"),
    ],
)
def test_what_never_fits(prompt: int, tokens: int, n: int, reason: str | None) -> None:
    assert make_kv_manager().never_fits(prompt, tokens, n) == reason


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_book_against_the_model(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Books, "ahead", ahead)
    check_state_machine(Books, settings=settings(max_examples=150, stateful_step_count=40))


def test_every_row_is_handed_out_once_and_row_zero_never() -> None:
    rows = RowPool(4)
    assert sorted(rows.allocate() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(AssertionError, match="num_free"):
        rows.allocate()
    assert rows.num_free == 0


def test_double_free_is_refused() -> None:
    rows = RowPool(3)
    row = rows.allocate()
    rows.reuse([row])
    with pytest.raises(AssertionError, match=f"row {row} is given back twice"):
        rows.reuse([row])
    with pytest.raises(AssertionError):
        rows.reuse([0])


def test_a_pool_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_rows: got 1, expected at least 2"):
        RowPool(1)


def with_margin() -> KvManager:
    return KvManager(21, PAGE_SIZE, max_requests=5, max_context=64, margin=8)


def test_a_margin_is_claimed_until_the_context_has_grown_or_ended() -> None:
    kv_manager = with_margin()
    for _ in range(20):
        (holding,) = kv_manager.admit(8, 8, 1, max_tokens=20) or ()
        for tokens, claimed in ((8, 2), (12, 2), (16, 1), (20, 0)):
            assert kv_manager.grow(holding, tokens) is not None
            assert kv_manager._claimed == claimed, tokens
        kv_manager.release(holding)
        (holding,) = kv_manager.admit(8, 8, 1, max_tokens=20) or ()
        kv_manager.release(holding)
        assert kv_manager._claimed == 0


def test_another_context_is_admitted_only_if_all_margins_fit() -> None:
    kv_manager = with_margin()
    held = [kv_manager.admit(12, 12, 1, max_tokens=40) for _ in range(4)]
    assert all(held), "4 x (3 pages, and 2 for the margin) of 20 pages"
    assert kv_manager.admit(4, 4, 1) is None
    for (holding,) in filter(None, held[:1]):
        kv_manager.release(holding)
    assert kv_manager.admit(20, 20, 1) is not None


def test_pages_that_a_transfer_may_touch_are_not_coming_free() -> None:
    kv_manager, is_read = with_margin(), True
    (holding,) = kv_manager.admit(12, 12, 1, PageState.RESERVED) or ()
    kv_manager.next_ticket()
    kv_manager.release(holding, lambda: is_read)
    assert kv_manager.num_coming == 0
    is_read = False
    assert kv_manager.num_coming == 3 and kv_manager.counts().free == 17, "a launch in flight may still touch them"
    kv_manager.collect(kv_manager.newest_ticket)
    assert kv_manager.num_coming == 0 and kv_manager.counts().free == 20
