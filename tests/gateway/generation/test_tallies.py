"""Our cheap numbers show what prometheus_client's own would."""

import random

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.generation.tallies import Spread, Tally

EDGES = (0.001, 0.0025, 0.5, 1.0, 30.0)


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_a_spread_reads_like_a_histogram() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spread = Spread("wait_seconds", "How long.", EDGES, ours)
    histogram = Histogram("wait_seconds", "How long.", buckets=EDGES, registry=theirs)
    rng = random.Random(1)
    for value in [*EDGES, 0.0, 99.0, *(rng.expovariate(1) for _ in range(500))]:
        spread.observe(value)
        histogram.observe(value)
    assert lines(ours) == lines(theirs)


def test_a_value_may_count_several_times() -> None:
    once, thrice = CollectorRegistry(), CollectorRegistry()
    spread = Spread("wait_seconds", "How long.", EDGES, once)
    for _ in range(3):
        spread.observe(0.25)
    Spread("wait_seconds", "How long.", EDGES, thrice).observe(0.25, 3)
    assert lines(once) == lines(thrice)


def test_a_tally_with_a_label_reads_like_a_counter() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Tally("refused", "So many.", ours, lambda: {"late": 2, "early": 0}, "reason")
    counter = Counter("refused", "So many.", ["reason"], registry=theirs)
    counter.labels("early")
    counter.labels("late").inc(2)
    assert lines(ours) == lines(theirs)
