"""What a KV manager caches: what is found, what is dropped for others, and what looks ahead to tokens to come."""

from protocol.prefixes import packed
from scheduler.planning.kv_manager import CacheKey, Holding, KvManager
from tests.scheduler.kv_managers import OWNED, admitted, make_kv_manager


def prompt_of(family: int, num_tokens: int) -> CacheKey:
    return CacheKey(packed([family] * num_tokens), "")


def kept(kv_manager: KvManager, family: int, num_tokens: int) -> Holding:
    """A holding whose prompt of one token many times is in the cache."""
    found = kv_manager.admit(num_tokens, num_tokens, 1, OWNED, prompt_of(family, num_tokens))
    assert found is not None
    kv_manager.keep(found[0], prompt_of(family, num_tokens))
    return found[0]


def test_pages_that_a_request_reads_are_not_dropped() -> None:
    kv_manager = make_kv_manager(num_pages=6, caches=True)
    kept(kv_manager, 1, 9)  # 3 pages, used longest ago, and still held
    other = kept(kv_manager, 2, 8)
    kv_manager.release(other)
    assert (kv_manager.counts().free, kv_manager.counts().cached) == (0, 2)
    assert sorted(kept(kv_manager, 3, 8).pages) == sorted(other.pages)
    assert kv_manager.admit(9, 9, 1, OWNED, prompt_of(1, 9)) is None, "its last page is its own"


def test_an_admission_that_fails_drops_and_pins_nothing() -> None:
    kv_manager = make_kv_manager(num_pages=6, caches=True)
    admitted(kv_manager, 8, 8)
    kv_manager.release(kept(kv_manager, 1, 8))
    before = kv_manager.counts()
    assert kv_manager.admit(20, 20, 1, OWNED, prompt_of(1, 20)) is None
    assert (before.cached, kv_manager.counts()) == (2, before)


def test_what_was_computed_twice_is_cached_once_and_holds_back_no_page() -> None:
    kv_manager = make_kv_manager(caches=True)
    first, second = (admitted(kv_manager, 8, 12)[0] for _ in range(2))
    kv_manager.keep(first, prompt_of(1, 8))
    kv_manager.keep(second, prompt_of(1, 12))
    kv_manager.release(first)
    assert (kv_manager.counts().cached, kv_manager.counts().owned, kv_manager.counts().free) == (2, 3, 14)
    assert kv_manager.grow(second, 64) is not None and kv_manager.admit(9, 9, 1) is not None, (
        "pages that nobody reads are free for whoever needs them"
    )
    assert (kv_manager.counts().cached, kv_manager.counts().free) == (0, 0)


def test_a_conversation_adds_its_outputs() -> None:
    kv_manager = make_kv_manager(caches=True)
    (holding,) = admitted(kv_manager, 5, 13)
    kv_manager.keep(holding, prompt_of(1, 5))
    kv_manager.keep(holding, prompt_of(1, 13))
    kv_manager.release(holding)
    found = kv_manager.admit(14, 14, 1, OWNED, prompt_of(1, 14))
    assert found is not None and found[0].num_cached == 12


def test_a_hit_ends_before_the_slots_whose_kv_depends_on_other_tokens() -> None:
    """One layer of a draft looks one token ahead: the last slot of page 1 was computed with the token of page 2."""
    kv_manager = make_kv_manager(caches=True, lookahead=1)
    (first,) = admitted(kv_manager, 12, 12)
    kv_manager.keep(first, CacheKey(packed([1] * 8 + [2] * 4), ""))
    other = CacheKey(packed([1] * 8 + [3] * 4), "")
    assert (kv_manager.num_cached(prompt_of(1, 8)), kv_manager.num_cached(other)) == (4, 4)
    assert kv_manager.num_cached(CacheKey(packed([1] * 8 + [2]), "")) == 8
    found = kv_manager.admit(12, 12, 1, OWNED, other)
    assert found is not None and found[0].num_cached == 4 and found[0].pages[1] != first.pages[1]


def test_choices_of_a_prompt_that_ends_with_a_page_have_their_own_last_page() -> None:
    one, other = admitted(make_kv_manager(lookahead=1), 8, 8, 2)
    assert one.pages[0] == other.pages[0] and one.pages[1] != other.pages[1]


def test_what_choices_that_share_less_need_is_refused_if_it_never_fits() -> None:
    kv_manager = make_kv_manager(num_pages=4, lookahead=1)
    assert kv_manager.never_fits(8, 8, 2) is None and kv_manager.admit(8, 8, 2) is not None
    assert kv_manager.never_fits(8, 8, 3) == "the request needs 4 KV pages, this worker has 3"
