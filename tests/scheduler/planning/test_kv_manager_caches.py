"""What a KV manager caches: what is found, what is dropped for others, and what looks ahead to tokens to come."""

from protocol.prefixes import packed
from scheduler.planning.kv_manager import CacheKey
from tests.scheduler.kv_managers import OWNED, admitted, make_kv_manager


def prompt_of(family: int, num_tokens: int) -> CacheKey:
    return CacheKey(packed([family] * num_tokens), "")


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
    again = kv_manager.admit(14, 14, 1, OWNED, prompt_of(1, 14))
    assert again is not None and again[0].num_cached == 12


def test_what_choices_that_share_less_need_is_refused_if_it_never_fits() -> None:
    kv_manager = make_kv_manager(num_pages=4, lookahead=1)
    assert kv_manager.never_fits(8, 8, 2) is None and kv_manager.admit(8, 8, 2) is not None
    assert kv_manager.never_fits(8, 8, 3) == "the request needs 4 KV pages, this worker has 3"
