"""The pairing before modelled workers, on a virtual clock: shares, what is cached, and queues under several loads."""

from functools import partial
from itertools import pairwise

import pytest

from protocol.prefixes import STRIDE
from tests.gateway.arrivals import (
    cached_share,
    chats,
    hot_prefix,
    many_prefixes,
    p95,
    prefill_share,
    restarted,
    share,
)
from tests.gateway.modelled_fleet import LAUNCH_S, Asked

SIZES = pytest.mark.parametrize(("num_prefix", "at_a_time"), [(num, at) for num in (512, 1800) for at in (4, 8, 32)])


def queue_p95_s(asked: list[Asked]) -> float:
    return p95([each.queue_s for each in asked])


@SIZES
def test_a_hot_prefix_pins_no_worker(num_prefix: int, at_a_time: int) -> None:
    asked = hot_prefix(num_prefix, at_a_time)
    assert prefill_share(asked) <= 0.65
    assert share(asked, lambda each: each.decode) <= 0.65
    pinned = hot_prefix(num_prefix, at_a_time, num_prefill=1)  # all requests where the prefix is
    assert cached_share(asked) >= 0.9 * cached_share(pinned)
    assert sum(each.num_cached < num_prefix // STRIDE * STRIDE for each in asked) <= 1, (
        "the other worker computes it once"
    )


def test_a_long_hot_prefix_is_learned_later() -> None:
    asked = hot_prefix(8192, 32, num_requests=640)
    assert prefill_share(asked) <= 0.65 and sum(each.num_cached < 8192 for each in asked) == 1


@pytest.mark.parametrize(("num_prefix", "at_a_time"), [(num, at) for num in (512, 1800) for at in (4, 32)])
def test_with_a_hot_prefix_nobody_waits_longer_than_under_least_loaded(num_prefix: int, at_a_time: int) -> None:
    asked, blind = (hot_prefix(num_prefix, at_a_time, pairing) for pairing in ("prefix_aware", "least_loaded"))
    assert queue_p95_s(asked) <= queue_p95_s(blind)
    computed_s, blind_s = (p95([each.computed_s - each.asked_s for each in found]) for found in (asked, blind))
    assert computed_s <= blind_s


@pytest.mark.parametrize("at_a_time", [8, 16])
def test_nor_does_anybody_in_the_long_run(at_a_time: int) -> None:
    """All that differs is the beginning, when one worker alone has the prefix. A few of 640 requests see it."""
    asked, blind = (
        hot_prefix(1800, at_a_time, pairing, num_requests=640) for pairing in ("prefix_aware", "least_loaded")
    )
    assert queue_p95_s(asked) <= queue_p95_s(blind) + LAUNCH_S / 8


@pytest.mark.parametrize("num_prefill", [3, 4])
def test_more_workers_share_a_hot_prefix(num_prefill: int) -> None:
    asked = hot_prefix(1800, 16, num_prefill=num_prefill, num_requests=320)
    assert len({each.prefill for each in asked}) == num_prefill and prefill_share(asked) <= 1.3 / num_prefill


@pytest.mark.parametrize(("num_prefix", "at_a_time"), [(512, 4), (1800, 32)])
def test_a_restarted_worker_carries_its_part_within_ten_seconds(num_prefix: int, at_a_time: int) -> None:
    assert 0.35 <= restarted(num_prefix, at_a_time) <= 0.65


@pytest.mark.parametrize("groups", [24, 64])
def test_each_of_many_prefixes_keeps_its_worker(groups: int) -> None:
    """The workers have about the same work, so no prefix is computed by both for the sake of balance."""
    asked = many_prefixes(1, groups)
    assert sum(each.num_cached == 0 for each in asked) <= 1.5 * groups
    assert prefill_share(asked) <= 0.65
    blind = many_prefixes(1, groups, pairing="least_loaded")
    assert cached_share(asked) > cached_share(blind) and queue_p95_s(asked) <= queue_p95_s(blind)


@pytest.mark.parametrize(("num_system", "at_a_time"), [(0, 16), (512, 4)])
def test_chats_stay_where_their_history_is_cached(num_system: int, at_a_time: int) -> None:
    load = partial(chats, 1, at_a_time, num_system)
    asked = load()
    assert cached_share(asked) >= 0.98 * cached_share(load(num_prefill=1)), "one worker has the history of every chat"
    moves = sum(
        later.prefill != earlier.prefill
        for chat in range(3 * at_a_time)
        for turns in [[each for each in asked if each.group == chat]]
        for earlier, later in pairwise(turns)
    )
    assert moves <= 0.03 * len(asked)
