"""What must hold of a PageAllocator at any time."""

from scheduler.kv_book import PageAllocator, PageState


def check_pages(pages: PageAllocator) -> None:
    """Asserts that the ledger adds up, and that counts, states, references and the free list agree."""
    assert sum(pages._count.values()) == pages.num_pages - 1, pages._count
    assert len(set(pages._free)) == len(pages._free) == pages._count[PageState.FREE]
    assert 0 not in pages._free
    assert not [page for page in pages._free if pages._state[page] is not PageState.FREE or pages._refs[page]]

    held = [state is PageState.RESERVED or state is PageState.OWNED for state in pages._state]
    assert held[1:] == [refs > 0 for refs in pages._refs[1:]]
