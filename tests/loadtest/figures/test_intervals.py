"""Intervals cover what does not differ, and the sentence tells what does."""

import random

from loadtest.figures.intervals import Row, compare, sentence

Run = dict[str, list[float | None]]


def run(scale: float, seed: int, count: int = 400) -> Run:
    rng = random.Random(seed)
    return {
        "ttft_ms": [scale * rng.gammavariate(4, 25) for _ in range(count)],
        "tpot_ms": [rng.gammavariate(9, 5) for _ in range(count)],
        "gap_ms": [None] * count,
    }


def by_name(rows: list[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows}


def test_a_difference_is_found_with_its_size() -> None:
    rows = by_name(compare([run(1.0, 1), run(1.0, 2)], [run(1.5, 3), run(1.5, 4)], {}))
    ttft = rows["ttft_p50_ms"]
    assert ttft.differs and ttft.low and ttft.high and ttft.low < 1.5 < ttft.high
    assert not rows["tpot_p50_ms"].differs
    assert "gap_p50_ms" not in rows and "e2e_p50_ms" not in rows
    told = sentence(list(rows.values()), (2, 2))
    assert (
        told.startswith("B against A: TTFT p")
        and "which is worse" in told
        and "TPOT p50" in told.partition("Within")[2]
    )


def test_equal_sides_rarely_differ() -> None:
    """95 of 100 intervals cover: of 12, more than 3 that do not are out of the question."""
    compared = [by_name(compare([run(1.0, seed)], [run(1.0, seed + 500)], {}))["ttft_p50_ms"] for seed in range(12)]
    assert sum(row.differs for row in compared) <= 3
    assert sentence([compared[0]], (1, 1)).endswith("use --repeat.")


def test_runs_that_scatter_widen_the_interval() -> None:
    steady = by_name(compare([run(1.0, 1), run(1.0, 2), run(1.0, 3)], [run(1.0, 4)], {}))["ttft_p50_ms"]
    drifting = by_name(compare([run(0.5, 1), run(1.0, 2), run(2.0, 3)], [run(1.0, 4)], {}))["ttft_p50_ms"]
    assert steady.low and steady.high and drifting.low and drifting.high
    assert drifting.high - drifting.low > 3 * (steady.high - steady.low)


def test_rates_have_an_interval_with_two_runs_only() -> None:
    one = by_name(compare([run(1, 1)], [run(1, 2)], {"tokens_per_s": ([100.0], [120.0])}))["tokens_per_s"]
    assert (one.ratio, one.low, one.differs) == (1.2, None, False)
    two = by_name(compare([run(1, 1)], [run(1, 2)], {"tokens_per_s": ([100.0, 101.0], [120.0, 119.0])}))["tokens_per_s"]
    assert two.differs
    assert "tokens/s +19% (+18% to +20%), which is better" in sentence([two], (2, 2))


def test_nothing_that_differs_is_said_so() -> None:
    assert sentence([], (2, 2)) == "No figure of B differs from A's by more than chance."
