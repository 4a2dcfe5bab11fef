"""A worker tells its gateway with its heartbeats what it has cached."""

from typing import Any

from protocol.messages_gateway import Heartbeat, Register, ToGateway, Welcome
from protocol.prefixes import packed, prefix_hashes
from protocol.worker_facts import CacheNews
from scheduler.planning.kv_manager import CacheKey
from tests.worker.conftest import Bench, keep_cached

IDS = packed([5] * 150)


def test_news_comes_once_with_the_next_heartbeat_and_for_each_gateway_anew(context: Any) -> None:
    told: list[tuple[int, CacheNews]] = []
    gateways = [Welcome(1, b"one"), Welcome(1, b"one"), Welcome(2, b"two")]
    num_beats = 0

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        nonlocal num_beats
        bench.advance_if_member()
        num_registers = sum(isinstance(message, Register) for message in arrived)
        for beat in (message for message in arrived if isinstance(message, Heartbeat)):
            num_beats += 1
            if beat.cache != CacheNews():
                told.append((num_beats, beat.cache))
            if num_beats in (1, 3, 5) and gateways:
                bench.send(gateways.pop(0))
            if num_beats in (2, 4, 6):
                keep_cached(bench.core.kv_manager, CacheKey(IDS, "salt"), 150)
        if num_registers:
            bench.send(gateways.pop(0))
        if num_beats >= 8:  # a busy machine hands over several at once
            bench.stop()

    Bench(context, play).served()
    one, two = (prefix_hashes(key, "salt", IDS) for key in (b"one", b"two"))
    assert [sorted(news.added) for _, news in told] == [sorted(one), sorted(two)]
    assert all(not news.dropped and not news.flushed for _, news in told)
