"""What must hold of a PageAllocator at any time, and of a planner at rest."""

from scheduler.planning.kv_pages import PageAllocator, PageState
from scheduler.planning.planner import Planner


def check_pages(pages: PageAllocator) -> None:
    """Asserts that the ledger adds up, and that counts, states, holders and the free list agree."""
    assert sum(pages._count.values()) == pages.num_pages - 1, pages._count
    assert sorted(pages._free) == [page for page, state in enumerate(pages._state) if page and not state]
    for page in range(1, pages.num_pages):
        state, is_kept, is_held = pages._state[page], pages._is_kept[page], pages._holders[page] > 0
        assert is_held == (state in (PageState.RESERVED, PageState.OWNED)), page
        assert is_held or (pages._retired[page] > 0) == (state is PageState.QUARANTINED), page
        assert is_kept or state is not PageState.CACHED, page
        assert not is_kept or state not in (PageState.FREE, PageState.RESERVED), page


def is_at_rest(planner: Planner) -> bool:
    """Whether nothing is in flight, and no row, page or slot has an owner."""
    book = planner.book
    pages, slots = book.pages.counts(), book.slot_counts()
    are_free = pages.free + pages.cached == pages.total and slots.free == slots.total
    return are_free and book.rows.num_free == book.rows.num_rows - 1 and not planner.in_flight
