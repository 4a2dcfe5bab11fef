import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from hypothesis.stateful import (
    run_state_machine_as_test as check_state_machine,
)

from scheduler.kv_book import PageAllocator, PageState
from tests.doubles.page_ledger import check_pages


class Pages(RuleBasedStateMachine):
    """Random legal calls against a dictionary that does what the allocator promises."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(2)
        self.num_pages = 2
        self.refs: dict[int, int] = {}
        self.state: dict[int, PageState] = {}
        self.quarantined: set[int] = set()

    @initialize(num_pages=st.integers(2, 12))
    def make(self, num_pages: int) -> None:
        self.pages = PageAllocator(num_pages)
        self.num_pages = num_pages

    @property
    def num_free(self) -> int:
        return self.num_pages - 1 - len(self.refs) - len(self.quarantined)

    @rule(num=st.integers(0, 6), state=st.sampled_from([PageState.OWNED, PageState.RESERVED]))
    def allocate(self, num: int, state: PageState) -> None:
        before = self.num_free
        got = self.pages.allocate(num, state)
        assert (got is None) == (num > before)
        for page in got or []:
            assert 0 < page < self.num_pages
            assert page not in self.refs and page not in self.quarantined
            self.refs[page] = 1
            self.state[page] = state
        assert got is None or len(set(got)) == num

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.refs)))
        self.pages.share([page])
        self.refs[page] += 1

    @precondition(lambda self: PageState.RESERVED in self.state.values())
    @rule(data=st.data())
    def own(self, data: st.DataObject) -> None:
        reserved = sorted(page for page, state in self.state.items() if state is PageState.RESERVED)
        chosen = data.draw(st.lists(st.sampled_from(reserved), unique=True, min_size=1))
        self.pages.own(chosen)
        self.state |= dict.fromkeys(chosen, PageState.OWNED)

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.refs)), unique=True, min_size=1))
        gone = []
        for page in chosen:
            self.refs[page] -= 1
            if not self.refs[page]:
                del self.refs[page], self.state[page]
                gone.append(page)
        assert self.pages.retire(chosen) == gone
        self.quarantined |= set(gone)

    @precondition(lambda self: self.quarantined)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.quarantined)), unique=True, min_size=1))
        self.pages.reuse(chosen)
        self.quarantined -= set(chosen)

    @rule(data=st.data())
    def what_nobody_holds_is_not_given_back(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from([p for p in range(self.num_pages) if p not in self.refs]))
        for refused in (self.pages.retire, self.pages.share):
            with pytest.raises(AssertionError):
                refused([page])
        if page not in self.quarantined:
            with pytest.raises(AssertionError):
                self.pages.reuse([page])

    @invariant()
    def ledger(self) -> None:
        check_pages(self.pages)
        counts = self.pages.counts()
        states = list(self.state.values())
        assert counts.total == self.num_pages - 1
        assert counts.free == self.pages.num_free == self.num_free
        assert counts.owned == states.count(PageState.OWNED)
        assert counts.reserved == states.count(PageState.RESERVED)
        assert counts.quarantined == len(self.quarantined)
        assert counts.cached == 0
        assert counts.total == counts.free + counts.owned + counts.reserved + counts.quarantined + counts.cached


def test_pages_against_the_model() -> None:
    check_state_machine(Pages, settings=settings(max_examples=30, stateful_step_count=25))


def test_the_page_given_back_last_is_handed_out_first() -> None:
    pages = PageAllocator(6)
    assert sorted(pages.allocate(3) or []) == [1, 2, 3]
    pages.reuse(pages.retire([2]))
    assert pages.allocate(1) == [2]


def test_a_pool_without_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_pages: got 1, expected at least 2"):
        PageAllocator(1)


def test_all_or_nothing() -> None:
    pages = PageAllocator(4)
    assert pages.allocate(4) is None
    assert pages.counts().free == 3
    assert pages.allocate(0) == []


def test_double_free_in_one_call() -> None:
    pages = PageAllocator(4)
    (page,) = pages.allocate(1) or []
    with pytest.raises(AssertionError, match=f"page {page} is given back twice"):
        pages.retire([page, page])


def test_owned_pages_are_not_owned_again() -> None:
    pages = PageAllocator(4)
    got = pages.allocate(1, PageState.OWNED) or []
    with pytest.raises(AssertionError, match="OWNED, expected RESERVED"):
        pages.own(got)
