"""What a worker tells of its cache: a gateway that takes all of it knows what the cache holds."""

import random
from math import lcm

import pytest

from gateway.routing.prefixes import KnownPrefixes
from protocol.prefixes import STRIDE, packed, prefix_hashes
from protocol.worker_facts import MAX_CACHE_NEWS, CacheNews
from scheduler.planning import prefix_news
from scheduler.planning.kv_manager import CacheKey, KvManager
from scheduler.planning.prefix_news import PrefixNews

KEY = b"the gateway's key"[:16]
SALTS = ("", "tenant")


def kv_manager_of(page_size: int, pool_tokens: int = 4096, lookahead: int = 0) -> KvManager:
    sizes = {"max_requests": 8, "max_context": 2048, "lookahead": lookahead}
    kv_manager = KvManager(pool_tokens // page_size + 1, page_size, **sizes, caches=True)
    kv_manager.report_to(KEY)
    return kv_manager


def cache(kv_manager: KvManager, ids: list[int], salt: str = "") -> None:
    """A request with this prompt runs and ends."""
    key = CacheKey(packed(ids), salt)
    held = kv_manager.admit(len(ids), len(ids), 1, key=key)
    assert held is not None
    kv_manager.keep(held[0], key)
    kv_manager.release(held[0])


def believed(known: KnownPrefixes, ids: list[int], salt: str = "", key: bytes = KEY) -> int:
    return known.longest(prefix_hashes(key, salt, packed(ids)))


@pytest.mark.parametrize(
    "page_size,lookahead", [*((size, 0) for size in (1, 4, 16, 48, 64, 100, 128, 256)), (1, 1), (16, 1), (64, 3)]
)
def test_the_gateway_knows_what_the_cache_holds(page_size: int, lookahead: int) -> None:
    """Prompts come, grow and branch, in memory for a few of them; a flush comes now and then."""
    rng = random.Random(page_size)
    kv_manager, known, told_tokens = (
        kv_manager_of(page_size, lookahead=lookahead),
        KnownPrefixes(),
        lcm(page_size, STRIDE),
    )
    prompts: list[tuple[list[int], str]] = [([], "")]
    num_evicted = num_held = 0
    for _ in range(300):
        start, salt = rng.choice(prompts[-12:])
        ids = start[: rng.randint(0, 1200)]
        ids = [*ids, *(rng.randrange(3) for _ in range(rng.randint(1, 700)))]
        prompts.append((ids, salt if ids else rng.choice(SALTS)))
        free = kv_manager.pages.num_free
        cache(kv_manager, *prompts[-1])
        num_evicted += kv_manager.pages.num_free + kv_manager.pages.num_cached > free + kv_manager.pages.num_cached
        if rng.random() < 0.02:
            kv_manager.flush()
        if rng.random() < 0.3:
            known.learn(kv_manager.news.take())
            for prompt, salt in prompts[-30:]:
                assert kv_manager._cache is not None
                held = len(kv_manager._cache.match(packed(prompt), salt)) * page_size // told_tokens * told_tokens
                # A hash names tokens alone. A page that looks ahead to others than this prompt's is told all the same.
                assert held <= believed(known, prompt, salt) <= held + told_tokens * (lookahead > 0)
                num_held += held > 0
    assert num_held > 5, "the test would show nothing"
    known.learn(kv_manager.news.take())
    kv_manager.flush()
    known.learn(kv_manager.news.take())
    assert len(known) == 0


def test_a_prefix_is_told_as_dropped_when_its_last_page_leaves() -> None:
    """Two pages have the same tokens and look ahead to different ones."""
    kv_manager, known = kv_manager_of(64, pool_tokens=256, lookahead=1), KnownPrefixes()
    cache(kv_manager, [1] * 64 + [2])
    cache(kv_manager, [1] * 64 + [3])
    assert kv_manager.counts().cached == 2
    for num_free, expected in ((3, 64), (4, 0)):
        held = kv_manager.admit(64 * num_free, 64 * num_free, 1)
        assert held is not None
        kv_manager.release(held[0])
        known.learn(kv_manager.news.take())
        assert believed(known, [1] * 64) == expected


def test_it_is_told_once_and_only_what_lasts() -> None:
    news = PrefixNews(64, KEY)
    news.added(packed([1] * 128), "", [5, 6], 0)
    [one, two] = prefix_hashes(KEY, "", packed([1] * 128))
    assert news.take() == CacheNews(added=(one, two)) and news.take() == CacheNews()
    news.dropped([6, 7])
    assert news.take() == CacheNews(dropped=(two,))
    news.added(packed([1] * 128), "", [5, 9], 1)
    news.dropped([9])
    assert news.take() == CacheNews(), "it came and went"
    news.dropped([5])
    news.added(packed([1] * 64), "", [8], 0)
    assert news.take() == CacheNews(), "it went and came back"
    news.flushed()
    news.added(packed([1] * 64), "", [8], 0)
    assert news.take() == CacheNews(flushed=True, added=(one,))


def test_what_is_long_is_told_in_pieces() -> None:
    news, known = PrefixNews(64, KEY), KnownPrefixes()
    ids = packed([1] * 64 * (2 * MAX_CACHE_NEWS + 5))
    news.added(ids, "", range(1, 2 * MAX_CACHE_NEWS + 6), 0)
    sizes = []
    while (told := news.take()) != CacheNews():
        sizes.append(len(told.added))
        known.learn(told)
    assert sizes == [MAX_CACHE_NEWS, MAX_CACHE_NEWS, 5] and len(known) == sum(sizes)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_news, "MOST_WAITING", 10)
    news = PrefixNews(64, KEY)
    ids = packed([1] * 64 * 15)
    news.added(ids, "", range(1, 16), 0)
    assert news.take() == CacheNews(added=tuple(prefix_hashes(KEY, "", ids)[5:])), "the oldest are lost"
    news.dropped(range(1, 16))
    assert len(news.take().dropped) == 10 and news.take() == CacheNews()


@pytest.mark.parametrize("told_to", [True, False])
@pytest.mark.parametrize("caches", [True, False])
def test_without_a_cache_or_a_gateway_that_asks_nothing_is_told(told_to: bool, caches: bool) -> None:
    kv_manager = KvManager(65, 16, max_requests=8, max_context=2048, caches=caches)
    if told_to:
        kv_manager.report_to(KEY)
    kv_manager.news.take()
    cache(kv_manager, [1] * 200)
    assert (kv_manager.news.take().added != ()) == (told_to and caches)


def test_another_gateway_begins_with_an_empty_cache() -> None:
    kv_manager = kv_manager_of(16)
    cache(kv_manager, [1] * 200)
    kv_manager.report_to(KEY)
    assert kv_manager.counts().cached == 12, "the same gateway"
    kv_manager.report_to(b"another key")
    assert kv_manager.counts().cached == 0 and kv_manager.news.take() == CacheNews()
    cache(kv_manager, [1] * 200)
    known = KnownPrefixes()
    known.learn(kv_manager.news.take())
    assert believed(known, [1] * 200) == 0 and believed(known, [1] * 200, key=b"another key") == 192


def test_a_gateway_that_knows_nothing_is_told_all_that_the_cache_holds_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever came and went before, and was told or not."""
    monkeypatch.setattr(prefix_news, "MOST_WAITING", 50)
    for seed in range(20):
        rng, kv_manager, first = random.Random(seed), kv_manager_of(16), KnownPrefixes()
        prompts = [[rng.randrange(3) for _ in range(rng.randint(64, 600))] for _ in range(12)]
        for ids in prompts:
            cache(kv_manager, ids)
            if rng.random() < 0.2:
                kv_manager.flush()
            if rng.random() < 0.3:
                first.learn(kv_manager.news.take())
        kv_manager.news.tell_anew()
        other = KnownPrefixes()
        while (news := kv_manager.news.take()) != CacheNews():
            other.learn(news)
        held = (
            [len(kv_manager._cache.match(packed(ids))) * 16 // STRIDE * STRIDE for ids in prompts]
            if kv_manager._cache
            else []
        )
        known = [believed(other, ids) for ids in prompts]
        assert len(other) == min(len(kv_manager.news._num_pages), 50)
        if len(other) < 50:
            assert known == held
        assert all(mine <= theirs for mine, theirs in zip(known, held, strict=True))
