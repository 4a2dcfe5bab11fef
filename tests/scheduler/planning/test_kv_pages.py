from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as check_state_machine

from scheduler.planning.kv_pages import PageAllocator, PageState
from tests.doubles.page_ledger import check_pages


class Pages(RuleBasedStateMachine):
    """Random legal calls against counters that do what the allocator promises."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(2)
        self.num_pages = 2
        self.holders: Counter[int] = Counter()
        self.retired: Counter[int] = Counter()
        self.reserved: set[int] = set()
        self.kept: set[int] = set()

    @initialize(num_pages=st.integers(2, 12))
    def make(self, num_pages: int) -> None:
        self.pages = PageAllocator(num_pages)
        self.num_pages = num_pages

    def is_free(self, page: int) -> bool:
        return not self.holders[page] and not self.retired[page] and page not in self.kept

    def all(self, wanted: Callable[[int], object]) -> list[int]:
        return [page for page in range(1, self.num_pages) if wanted(page)]

    @rule(num=st.integers(0, 6), state=st.sampled_from([PageState.OWNED, PageState.RESERVED]))
    def allocate(self, num: int, state: PageState) -> None:
        free = self.all(self.is_free)
        got = self.pages.allocate(num, state)
        assert (got is None) == (num > len(free))
        assert len(set(got or ())) == len(got or ()) and set(got or ()) <= set(free)
        self.holders.update(got or ())
        if state is PageState.RESERVED:
            self.reserved.update(got or ())

    @precondition(lambda self: self.all(lambda page: self.holders[page] or page in self.kept))
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.all(lambda page: self.holders[page] or page in self.kept)))
        self.pages.share([page])
        self.holders[page] += 1

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def own(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.reserved)), unique=True, min_size=1))
        self.pages.own(chosen)
        self.reserved -= set(chosen)

    @precondition(lambda self: +self.holders)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(+self.holders)), unique=True, min_size=1))
        self.pages.retire(chosen)
        self.holders.subtract(chosen)
        self.retired.update(chosen)
        self.reserved -= {page for page in chosen if not self.holders[page]}

    @precondition(lambda self: +self.retired)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(+self.retired)), unique=True, min_size=1))
        self.pages.reuse(chosen)
        self.retired.subtract(chosen)

    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        owned = self.all(lambda page: self.holders[page] and page not in self.reserved | self.kept)
        chosen = data.draw(st.lists(st.sampled_from(owned), unique=True) if owned else st.just([]))
        self.pages.keep(chosen)
        self.kept |= set(chosen)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.kept)), unique=True, min_size=1))
        self.pages.drop(chosen)
        self.kept -= set(chosen)

    @rule(data=st.data())
    def illegal_calls_are_refused(self, data: st.DataObject) -> None:
        page = data.draw(st.integers(0, self.num_pages - 1))
        refused: list[Callable[[list[int]], None]] = []
        refused += [] if self.holders[page] else [self.pages.retire, self.pages.keep]
        refused += [] if self.holders[page] or page in self.kept else [self.pages.share]
        refused += [] if self.retired[page] else [self.pages.reuse]
        refused += [self.pages.keep] if page in self.kept | self.reserved else []
        refused += [] if page in self.kept else [self.pages.drop]
        refused += [] if page in self.reserved else [self.pages.own]
        for call in refused:
            with pytest.raises(AssertionError):
                call([page])

    @invariant()
    def ledger(self) -> None:
        check_pages(self.pages)
        counts = self.pages.counts()
        idle = self.all(lambda page: not self.holders[page] and not self.retired[page])
        assert counts.total == self.num_pages - 1
        assert counts.free == self.pages.num_free == len(set(idle) - self.kept)
        assert counts.cached == self.pages.num_cached == len(self.kept & set(idle))
        assert counts.reserved == len(self.reserved)
        assert counts.owned == len(+self.holders) - len(self.reserved)
        assert counts.quarantined == len(self.all(lambda page: self.retired[page] and not self.holders[page]))
        assert all(self.pages.is_idle(page) == (page in idle and page in self.kept) for page in range(self.num_pages))


def test_pages_against_the_model() -> None:
    check_state_machine(Pages, settings=settings(max_examples=60, stateful_step_count=30))


def test_the_page_given_back_last_is_handed_out_first() -> None:
    pages = PageAllocator(6)
    assert sorted(pages.allocate(3) or []) == [1, 2, 3]
    pages.retire([2])
    pages.reuse([2])
    assert pages.allocate(1) == [2]


def test_a_pool_without_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_pages: got 1, expected at least 2"):
        PageAllocator(1)


def test_double_free_in_one_call() -> None:
    pages = PageAllocator(4)
    (page,) = pages.allocate(1) or []
    with pytest.raises(AssertionError, match=f"page {page} is given back twice"):
        pages.retire([page, page])
