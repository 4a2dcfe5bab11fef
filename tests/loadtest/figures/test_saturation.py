"""A queue that grows without bound is found, and a busy server is not taken for one."""

import random

from loadtest.figures.record import Ending, Record
from loadtest.figures.saturation import Look, saturation
from tests.loadtest.records import recorded


def began(at_s: float, ttft_s: float) -> Record:
    """A request whose first token came at `at_s`."""
    return recorded(at_s - ttft_s, [at_s], [1])


def simulated(rate: float, service_rate: float, seconds: int, seed: int = 1) -> tuple[list[Look], list[Record]]:
    """One queue with one server: looks once a second, and requests."""
    rng = random.Random(seed)
    at = free = 0.0
    spans = []
    while at < seconds:
        at += rng.expovariate(rate)
        free = max(free, at) + rng.expovariate(service_rate)
        spans.append((at, free))
    looks = [
        Look(now, sum(begin <= now for begin, _ in spans), sum(begin <= now < end for begin, end in spans))
        for now in range(seconds)
    ]
    return looks, [began(end, end - begin) for begin, end in spans]


def test_a_growing_queue_is_over_saturated() -> None:
    looks, records = simulated(rate=10, service_rate=7, seconds=60)
    reason = saturation(looks, [record for record in records if record.end_s <= 60])
    assert reason is not None and "the server is over-saturated: in the last 30 s" in reason


def test_a_busy_server_is_not() -> None:
    """At any moment of ten long runs at 90% of what it can do."""
    for seed in range(10):
        looks, records = simulated(rate=9, service_rate=10, seconds=120, seed=seed)
        assert [
            now
            for now in range(40, 120, 5)
            if saturation(looks[:now], [record for record in records if record.end_s <= now])
        ] == []


def test_a_burst_that_ends_is_not() -> None:
    looks = [Look(float(at), 20 * min(at, 20), max(0, 60 - abs(at - 30) * 3)) for at in range(60)]
    assert saturation(looks, []) is None


def test_little_is_no_evidence() -> None:
    looks, records = simulated(rate=10, service_rate=2, seconds=30)
    assert saturation(looks, records) is saturation([], []) is None


def test_more_in_flight_at_the_same_speed_is_a_ramp() -> None:
    looks = [Look(float(at), 20 * at, 4 * at) for at in range(100)]
    assert saturation(looks, [began(float(at), 0.2) for at in range(100)]) is None
    assert saturation(looks, [began(float(at), 0.01 * at**2) for at in range(100)]) is not None


def test_a_server_that_refuses_has_no_queue_and_cannot_keep_up() -> None:
    looks = [Look(float(at), 10 * at, 20) for at in range(60)]
    refused = [recorded(at / 2, [], [], ending=Ending.FAILED, kind="HTTP 503", error="full") for at in range(120)]
    reason = saturation(looks, refused)
    assert reason is not None and reason.endswith("290 requests arrived and 61 were refused (full)")
    assert saturation(looks, refused[::4]) is None, "a tenth is too little"
