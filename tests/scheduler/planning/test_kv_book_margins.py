"""Room that contexts may grow into: what their margins claim, and which pages are coming free."""

from scheduler.planning.kv_book import KvBook
from scheduler.planning.kv_pages import PageState

PAGE_SIZE = 4


def make_book() -> KvBook:
    return KvBook(21, PAGE_SIZE, max_requests=5, max_context=64, margin=8)


def test_a_margin_is_claimed_until_the_context_has_grown_or_ended() -> None:
    book = make_book()
    for _ in range(20):
        (holding,) = book.admit(8, 8, 1, max_tokens=20) or ()
        for tokens, claimed in ((8, 2), (12, 2), (16, 1), (20, 0)):
            assert book.grow(holding, tokens) is not None
            assert book._claimed == claimed, tokens
        book.release(holding)
        (holding,) = book.admit(8, 8, 1, max_tokens=20) or ()
        book.release(holding)
        assert book._claimed == 0


def test_another_context_is_admitted_only_if_all_margins_fit() -> None:
    book = make_book()
    held = [book.admit(12, 12, 1, max_tokens=40) for _ in range(4)]
    assert all(held), "4 x (3 pages, and 2 for the margin) of 20 pages"
    assert book.admit(4, 4, 1) is None
    for (holding,) in filter(None, held[:1]):
        book.release(holding)
    assert book.admit(20, 20, 1) is not None


def test_pages_that_a_transfer_may_touch_are_not_coming_free() -> None:
    book, is_read = make_book(), True
    (holding,) = book.admit(12, 12, 1, PageState.RESERVED) or ()
    book.next_ticket()
    book.release(holding, lambda: is_read)
    assert book.num_coming == 0
    is_read = False
    assert book.num_coming == 3 and book.counts().free == 17, "a launch in flight may still touch them"
    book.collect(book.newest_ticket)
    assert book.num_coming == 0 and book.counts().free == 20
