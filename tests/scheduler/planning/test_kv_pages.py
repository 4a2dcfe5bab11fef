from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as check_state_machine

from protocol.kv_layout import pages_for_choices
from scheduler.planning.kv_pages import PageAllocator, PageState, allocate_choices, prompt_copies
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


SIZES = (
    st.integers(1, 60),
    st.integers(0, 40),
    st.integers(1, 5),
    st.sampled_from([1, 2, 7, 16]),
    st.sampled_from([0, 0, 1, 3]),
)


@given(*SIZES)
def test_choices_share_the_settled_prompt_pages_and_nothing_else(
    prompt: int, outputs: int, n: int, size: int, ahead: int
) -> None:
    total = prompt + outputs
    needed = pages_for_choices(prompt, total, n, size, ahead)
    pool = PageAllocator(needed + 1)
    choices = allocate_choices(pool, (), prompt, total, n, size, ahead, PageState.RESERVED)
    assert choices is not None and len(choices) == n
    shared = max(prompt - ahead, 0) // size
    assert all(len(pages) == len(set(pages)) == -(-total // size) for pages in choices)
    assert all(pages[:shared] == choices[0][:shared] for pages in choices)
    own = [page for pages in choices for page in pages[shared:]]
    assert len(own) == len(set(own)) and not set(own) & set(choices[0][:shared])
    # Shared pages are counted once, and the pool is exactly used up.
    assert (pool.counts().reserved, pool.counts().free) == (needed, 0)

    for index, pages in enumerate(choices):
        pool.retire(pages)
        left = sum(map(len, choices[index + 1 :])) - shared * max(0, n - index - 2)
        assert pool.counts().quarantined == needed - left


@given(*SIZES)
def test_too_few_pages_change_nothing(prompt: int, outputs: int, n: int, size: int, ahead: int) -> None:
    needed = pages_for_choices(prompt, prompt + outputs, n, size, ahead)
    if needed < 2:
        return
    pool = PageAllocator(needed)
    assert allocate_choices(pool, (), prompt, prompt + outputs, n, size, ahead, PageState.OWNED) is None
    assert pool.counts().free == needed - 1
    check_pages(pool)


@given(*SIZES)
def test_every_choice_has_the_prompt_after_the_copies(prompt: int, outputs: int, n: int, size: int, ahead: int) -> None:
    pool = PageAllocator(1000)
    first, *others = allocate_choices(pool, (), prompt, prompt + outputs, n, size, ahead, PageState.OWNED) or []
    sources, targets = prompt_copies(first, others, prompt, size, ahead)
    holds = {page: index for index, page in enumerate(first[: -(-prompt // size)])}
    assert not set(targets) & set(first) and len(set(targets)) == len(targets), "no other request's KV is overwritten"
    holds |= {target: holds[source] for source, target in zip(sources, targets, strict=True)}
    for pages in others:
        assert [holds[page] for page in pages[: -(-prompt // size)]] == list(range(-(-prompt // size)))
        own = [page for page in pages if page not in first]
        assert len(set(targets) & set(own)) == -(-prompt // size) - max(prompt - ahead, 0) // size, "no copy is idle"
