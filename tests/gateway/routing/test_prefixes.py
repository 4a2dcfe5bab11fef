"""What the gateway believes that a worker has cached."""

import pytest

from gateway.routing import prefixes
from gateway.routing.prefixes import PATIENCE, KnownPrefixes
from protocol.worker_facts import CacheNews

A, B, C, D = (bytes([number]) * 8 for number in range(4))


def test_the_longest_known_prefix_counts() -> None:
    known = KnownPrefixes()
    assert known.longest([A, B]) == 0 and known.longest([]) == 0
    known.learn(CacheNews(added=(A, B)))
    assert known.longest([A, B, C]) == 128 and known.longest([A]) == 64 and known.longest([C, D]) == 0
    assert known.longest([D, B, C]) == 128, "news about a shorter one may be lost"


def test_dropped_and_flushed_ones_are_forgotten() -> None:
    known = KnownPrefixes()
    known.learn(CacheNews(added=(A, B, C)))
    known.learn(CacheNews(dropped=(C, D)))
    assert known.longest([A, B, C]) == 128
    known.learn(CacheNews(flushed=True, added=(A,)))
    assert known.longest([A, B, C]) == 64 and len(known) == 1


def test_news_that_comes_twice_changes_nothing() -> None:
    known = KnownPrefixes()
    for news in (CacheNews(added=(A, B)), CacheNews(added=(C,), dropped=(B,))):
        for _ in range(2):
            known.learn(news)
    assert [known.longest([each]) for each in (A, B, C)] == [64, 0, 64]


def test_a_prompt_that_the_worker_has_got_is_known_before_it_is_told() -> None:
    known = KnownPrefixes()
    known.expect([A, B])
    assert known.longest([A, B, C]) == 128 and len(known) == 0, "it has told nothing"
    known.learn(CacheNews(added=(A,)))
    for _ in range(PATIENCE - 2):
        known.learn(CacheNews())
    assert known.longest([A, B]) == 128
    known.learn(CacheNews())
    assert known.longest([A, B]) == 64, "B was never told"


def test_what_is_expected_may_be_dropped_or_flushed() -> None:
    for news in (CacheNews(flushed=True), CacheNews(dropped=(A, B))):
        known = KnownPrefixes()
        known.expect([A, B])
        known.learn(news)
        assert known.longest([A, B]) == 0


def test_memory_is_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MOST_PREFIXES", 3)
    known = KnownPrefixes()
    known.learn(CacheNews(added=(A, B)))
    known.learn(CacheNews(added=(C, D)))
    assert len(known) == 3 and [known.longest([each]) for each in (A, B, C, D)] == [0, 64, 64, 64]
    known = KnownPrefixes()
    known.expect([A, B, C, D])
    assert [known.longest([each]) for each in (A, B, C, D)] == [0, 64, 64, 64]
