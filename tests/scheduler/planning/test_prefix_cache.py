"""The tree of cached pages against a dictionary of every prefix, and each rule alone."""

import gc
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from hypothesis.stateful import (
    run_state_machine_as_test as check_state_machine,
)

from protocol.prefixes import packed
from scheduler.planning.prefix_cache import PrefixCache

PAGE_SIZE = 2
Prefix = tuple[str, tuple[int, ...]]  # salt, ids of whole pages and of the tokens they look ahead to
IDS = st.lists(st.integers(0, 2), max_size=9)  # few different ids, so that prompts share and branch
SALTS = st.sampled_from(["", "a"])


def make_tree(read: set[int] | None = None, lookahead: int = 0) -> PrefixCache:
    return PrefixCache(PAGE_SIZE, lambda page: page not in (read or set()), lookahead)


class Tree(RuleBasedStateMachine):
    """Random look-ups, insertions and evictions; readers hold whole paths."""

    ahead = 0

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[list[int]] = []
        self.tree = PrefixCache(PAGE_SIZE, lambda page: not any(page in read for read in self.readers), self.ahead)
        self.held: dict[Prefix, int] = {}  # the last page of every prefix in the tree
        self.newest = 0

    def known(self, ids: Sequence[int], salt: str) -> list[int]:
        """The pages of the longest known run of settled pages."""
        pages: list[int] = []
        for end in range(PAGE_SIZE + self.ahead, len(ids) + 1, PAGE_SIZE):
            if (page := self.held.get((salt, tuple(ids[:end])))) is None:
                break
            pages.append(page)
        return pages

    @rule(ids=IDS, salt=SALTS)
    def insert(self, ids: list[int], salt: str) -> None:
        known = self.known(ids, salt)
        pages = list(range(self.newest + 1, self.newest + 1 + max(len(ids) - self.ahead, 0) // PAGE_SIZE))
        self.newest += len(pages)
        assert self.tree.insert(packed(ids), pages, salt) == known
        for index in range(len(known), len(pages)):
            self.held[salt, tuple(ids[: (index + 1) * PAGE_SIZE + self.ahead])] = pages[index]

    @rule(ids=IDS, salt=SALTS, reads=st.booleans())
    def match(self, ids: list[int], salt: str, reads: bool) -> None:
        assert self.tree.num_known(packed(ids), salt) == len(self.known(ids, salt))
        pages = self.tree.match(packed(ids), salt)
        assert pages == self.known(ids, salt)
        if reads and pages:
            self.readers.append(pages)

    @precondition(lambda self: self.readers)
    @rule()
    def end(self) -> None:
        self.readers.pop()

    @rule(num=st.integers(0, 8))
    def evict(self, num: int) -> None:
        read = {page for pages in self.readers for page in pages}
        idle = set(self.held.values()) - read
        evicted = self.tree.evict(num)
        assert len(set(evicted)) == len(evicted) == min(num, len(idle)), "every idle page can be had"
        assert set(evicted) <= idle
        self.held = {prefix: page for prefix, page in self.held.items() if page not in evicted}
        for salt, ids in self.held:
            before = ids[:-PAGE_SIZE]
            assert len(before) == self.ahead or (salt, before) in self.held, "a page is useless without its prefix"

    @rule(ids=IDS, salt=SALTS, start=st.integers(0, 3))
    def replace(self, ids: list[int], salt: str, start: int) -> None:
        known = self.tree.match(packed(ids), salt)
        if start >= len(known):
            return
        first, last = (tuple(ids[: (end + 1) * PAGE_SIZE + self.ahead]) for end in (start, len(known) - 1))
        behind = [page for (own, prefix), page in self.held.items() if own == salt and prefix[: len(first)] == first]
        is_read = any(page in read for read in self.readers for page in behind if page not in known)
        pages = list(range(self.newest + 1, self.newest + 1 + len(known)))
        replaced = self.tree.replace(packed(ids), pages, salt, start)
        assert replaced == (None if is_read else known[start:])
        if replaced is not None:
            self.newest += len(known)
            for number in range(start, len(known)):
                self.held[salt, last[: (number + 1) * PAGE_SIZE + self.ahead]] = pages[number]

    @rule(ids=IDS, salt=SALTS, but=st.sets(st.integers(1, 40)))
    def count(self, ids: list[int], salt: str, but: set[int]) -> None:
        known = self.known(ids, salt)
        expected = next((number for number, page in enumerate(known) if page in but), len(known))
        assert self.tree.num_known(packed(ids), salt, but) == expected

    @precondition(lambda self: not self.readers)
    @rule()
    def clear(self) -> None:
        assert sorted(self.tree.clear()) == sorted(self.held.values())
        self.held.clear()

    @invariant()
    def counts(self) -> None:
        assert self.tree.num_pages == len(self.held)
        assert set(self.tree._roots) == {salt for salt, _ in self.held}, "a salt without pages takes memory"


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_against_a_dictionary(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tree, "ahead", ahead)
    check_state_machine(Tree, settings=settings(max_examples=100, stateful_step_count=40, deadline=None))


def test_what_was_used_longest_ago_leaves_first() -> None:
    tree = make_tree()
    for first, pages in ((1, [10, 11]), (3, [12]), (4, [13])):
        tree.insert(packed([first] * 2 * len(pages)), pages)
    tree.match(packed([1, 1]))  # its first page only: the second one is older than all others
    assert [tree.evict(1) for _ in range(5)] == [[11], [12], [13], [10], []]


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_page_takes_at_most_500_bytes(page_size: int) -> None:
    """The worst tree: no page has a page in common with another prompt."""
    gc.collect()
    tracemalloc.start()
    try:
        tree = PrefixCache(page_size, lambda page: True)
        for page in range(20_000):
            tree.insert(packed([page] * page_size), [page])
        assert tracemalloc.get_traced_memory()[0] < 500 * 20_000
    finally:
        tracemalloc.stop()
    assert tree.num_pages == 20_000


def test_counting_pages_is_no_use_of_them_and_changes_nothing() -> None:
    tree = PrefixCache(PAGE_SIZE, lambda page: True)
    tree.insert(packed([1, 1, 2, 2]), [1, 2])
    tree.insert(packed([3, 3]), [3])
    assert [tree.num_known(packed(ids)) for ids in ([1, 1, 2, 2, 9], [1, 1, 9, 9], [1], [9, 9], [])] == [2, 1, 0, 0, 0]
    assert tree.num_known(packed([1, 1]), "salt") == 0
    assert tree.evict(2) == [2, 1], "they are still the ones used longest ago, and one run"
