"""What a book caches: what is found, what is dropped for others, and what looks ahead to tokens to come."""

from protocol.prefixes import packed
from scheduler.planning.kv_book import CacheKey, Holding, KvBook
from tests.scheduler.books import OWNED, admitted, make_book


def prompt_of(family: int, num_tokens: int) -> CacheKey:
    return CacheKey(packed([family] * num_tokens), "")


def kept(book: KvBook, family: int, num_tokens: int) -> Holding:
    """A holding whose prompt of one token many times is in the cache."""
    found = book.admit(num_tokens, num_tokens, 1, OWNED, prompt_of(family, num_tokens))
    assert found is not None
    book.keep(found[0], prompt_of(family, num_tokens))
    return found[0]


def test_pages_that_a_request_reads_are_not_dropped() -> None:
    book = make_book(num_pages=6, caches=True)
    kept(book, 1, 9)  # 3 pages, used longest ago, and still held
    other = kept(book, 2, 8)
    book.release(other)
    assert (book.counts().free, book.counts().cached) == (0, 2)
    assert sorted(kept(book, 3, 8).pages) == sorted(other.pages)
    assert book.admit(9, 9, 1, OWNED, prompt_of(1, 9)) is None, "its last page is its own"


def test_an_admission_that_fails_drops_and_pins_nothing() -> None:
    book = make_book(num_pages=6, caches=True)
    admitted(book, 8, 8)
    book.release(kept(book, 1, 8))
    before = book.counts()
    assert book.admit(20, 20, 1, OWNED, prompt_of(1, 20)) is None
    assert (before.cached, book.counts()) == (2, before)


def test_what_was_computed_twice_is_cached_once_and_holds_back_no_page() -> None:
    book = make_book(caches=True)
    first, second = (admitted(book, 8, 12)[0] for _ in range(2))
    book.keep(first, prompt_of(1, 8))
    book.keep(second, prompt_of(1, 12))
    book.release(first)
    assert (book.counts().cached, book.counts().owned, book.counts().free) == (2, 3, 14)
    assert book.grow(second, 64) is not None and book.admit(9, 9, 1) is not None, (
        "pages that nobody reads are free for whoever needs them"
    )
    assert (book.counts().cached, book.counts().free) == (0, 0)


def test_a_conversation_adds_its_outputs() -> None:
    book = make_book(caches=True)
    (holding,) = admitted(book, 5, 13)
    book.keep(holding, prompt_of(1, 5))
    book.keep(holding, prompt_of(1, 13))
    book.release(holding)
    found = book.admit(14, 14, 1, OWNED, prompt_of(1, 14))
    assert found is not None and found[0].num_cached == 12


def test_a_hit_ends_before_the_slots_whose_kv_depends_on_other_tokens() -> None:
    """One layer of a draft looks one token ahead: the last slot of page 1 was computed with the token of page 2."""
    book = make_book(caches=True, lookahead=1)
    (first,) = admitted(book, 12, 12)
    book.keep(first, CacheKey(packed([1] * 8 + [2] * 4), ""))
    other = CacheKey(packed([1] * 8 + [3] * 4), "")
    assert (book.num_cached(prompt_of(1, 8)), book.num_cached(other)) == (4, 4)
    assert book.num_cached(CacheKey(packed([1] * 8 + [2]), "")) == 8
    found = book.admit(12, 12, 1, OWNED, other)
    assert found is not None and found[0].num_cached == 4 and found[0].pages[1] != first.pages[1]


def test_choices_of_a_prompt_that_ends_with_a_page_have_their_own_last_page() -> None:
    one, other = admitted(make_book(lookahead=1), 8, 8, 2)
    assert one.pages[0] == other.pages[0] and one.pages[1] != other.pages[1]


def test_what_choices_that_share_less_need_is_refused_if_it_never_fits() -> None:
    book = make_book(num_pages=4, lookahead=1)
    assert book.never_fits(8, 8, 2) is None and book.admit(8, 8, 2) is not None
    assert book.never_fits(8, 8, 3) == "the request needs 4 KV pages, this worker has 3"
