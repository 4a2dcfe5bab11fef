"""What must hold of a PageAllocator at any time, and of a planner at rest."""

from itertools import islice

from scheduler.planning.kv_pages import PageAllocator, PageState
from scheduler.planning.planner import Planner


def check_pages(pages: PageAllocator) -> None:
    """Asserts that the ledger adds up, and that counts, states, holders and the free list agree."""
    assert sum(pages._count.values()) == pages.num_pages - 1, pages._count
    assert sorted(pages._free) == [page for page, state in enumerate(pages._state) if page and not state]
    are_held, are_retired = map((0).__lt__, pages._holders), map((0).__lt__, pages._retired)
    kinds = set(islice(zip(pages._state, pages._is_kept, are_held, are_retired, strict=True), 1, None))
    for state, is_kept, is_held, is_retired in kinds:
        kind = f"{state!r}, kept: {is_kept}, held: {is_held}, retired: {is_retired}"
        assert is_held == (state in (PageState.RESERVED, PageState.OWNED)), kind
        assert is_held or is_retired == (state is PageState.QUARANTINED), kind
        assert is_kept or state is not PageState.CACHED, kind
        assert not is_kept or state not in (PageState.FREE, PageState.RESERVED), kind


def is_at_rest(planner: Planner) -> bool:
    """Whether nothing is in flight, and no row, page or host page has an owner."""
    kv_manager = planner.kv_manager
    pages, host_pages = kv_manager.pages.counts(), kv_manager.host_page_counts()
    are_free = pages.free + pages.cached == pages.total and host_pages.free == host_pages.total
    return are_free and kv_manager.rows.num_free == kv_manager.rows.num_rows - 1 and not planner.in_flight
