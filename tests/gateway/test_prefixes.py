"""What the gateway believes that a worker has cached."""

import pytest

from gateway import prefixes
from gateway.prefixes import KnownPrefixes
from protocol.messages_gateway import CacheNews

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


def test_memory_is_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MOST_PREFIXES", 3)
    known = KnownPrefixes()
    known.learn(CacheNews(added=(A, B)))
    known.learn(CacheNews(added=(C, D)))
    assert len(known) == 3 and [known.longest([each]) for each in (A, B, C, D)] == [0, 64, 64, 64]
