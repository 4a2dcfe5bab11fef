"""What a KV manager caches: what is found, what is dropped for others, and what looks ahead to tokens to come."""

import random

import pytest

from protocol.prefixes import packed
from scheduler.planning.kv_manager import CacheKey, Holding, KvManager
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


def begun(kv_manager: KvManager, ids: list[int], *, has_draft: bool) -> Holding:
    found = kv_manager.admit(len(ids), len(ids), 1, OWNED, CacheKey(packed(ids), ""), has_draft=has_draft)
    assert found is not None
    return found[0]


def test_a_prompt_with_a_draft_finds_no_page_that_lacks_its_kv_and_puts_its_own_there() -> None:
    kv_manager, ids = make_kv_manager(caches=True, lookahead=1), [1] * 9
    key = CacheKey(packed(ids), "")
    bare = begun(kv_manager, ids, has_draft=False)
    kv_manager.keep(bare, key)
    assert begun(kv_manager, ids, has_draft=False).num_cached == 8

    drafting = begun(kv_manager, ids, has_draft=True)
    assert drafting.num_cached == 0 and not set(drafting.pages) & set(bare.pages)
    kv_manager.keep(drafting, key)
    for has_draft in (True, False):
        found = begun(kv_manager, ids, has_draft=has_draft)
        assert found.num_cached == 8 and found.pages[:2] == drafting.pages[:2]
    kv_manager.release(bare)
    kv_manager.collect(kv_manager.newest_ticket)
    assert kv_manager.counts().cached == 0, "nobody finds the pages of the first one any more"


def test_what_follows_pages_without_the_drafts_kv_stays_behind_those_that_take_their_places() -> None:
    """The first page of three prompts is the same. While somebody reads what follows it, it keeps its place."""
    kv_manager = make_kv_manager(num_pages=40, max_requests=9, caches=True, lookahead=1)
    prompts = [[1] * 8 + [last] * 9 for last in (2, 3)]
    bare: list[Holding] = []
    for ids in prompts:
        bare.append(begun(kv_manager, ids, has_draft=False))
        kv_manager.keep(bare[-1], CacheKey(packed(ids), ""))

    def found(*, has_draft: bool) -> list[int]:
        return [kv_manager.num_cached(CacheKey(packed(ids), ""), has_draft=has_draft) for ids in (*prompts, [1] * 9)]

    drafting = begun(kv_manager, [1] * 9, has_draft=True)
    kv_manager.keep(drafting, CacheKey(packed([1] * 9), ""))
    assert found(has_draft=False) == [16, 16, 4] and found(has_draft=True) == [0, 0, 0]

    for holding in bare:
        kv_manager.release(holding)
    kv_manager.collect(kv_manager.newest_ticket)
    kv_manager.keep(drafting, CacheKey(packed([1] * 9), ""))
    assert found(has_draft=False) == [16, 16, 8] and found(has_draft=True) == [4, 4, 8]
    again = begun(kv_manager, prompts[0], has_draft=False)
    assert again.pages[0] == drafting.pages[0] and again.pages[1:4] == bare[0].pages[1:4]
    cached = kv_manager.counts().cached
    assert cached == 3, "of the other prompt; the first one's page is free, and all others are read"


@pytest.mark.parametrize("seed", range(20))
def test_no_prompt_with_a_draft_ever_begins_with_pages_that_lack_its_kv(seed: int) -> None:
    rng = random.Random(seed)
    kv_manager = make_kv_manager(num_pages=24, max_requests=5, caches=True, lookahead=1)
    held: list[tuple[Holding, CacheKey]] = []
    written: dict[int, bool] = {}  # whether the page's KV of the draft is there
    num_found = 0
    for _ in range(400):
        ids, has_draft = [rng.randrange(2)] * rng.randrange(1, 12) + [2] * rng.randrange(6), rng.random() < 0.5
        key, event = CacheKey(packed(ids), ""), rng.random()
        if event < 0.5 and (found := kv_manager.admit(len(ids), len(ids), 1, OWNED, key, has_draft=has_draft)):
            (holding,) = found
            num_cached = holding.num_cached // kv_manager.page_size
            assert not has_draft or all(written[page] for page in holding.pages[:num_cached])
            num_found += has_draft and num_cached > 0
            written.update(dict.fromkeys(holding.pages[num_cached:], has_draft))
            held.append((holding, key))
        elif event < 0.55:  # what they write from now on lacks it
            kv_manager.forget_drafts()
            written.update((page, False) for holding, _ in held for page in holding.pages[holding.num_cached // 4 :])
        elif held:
            holding, key = held.pop(rng.randrange(len(held)))
            if rng.random() < 0.8:
                kv_manager.keep(holding, key)
            kv_manager.release(holding)
    assert num_found > 5
