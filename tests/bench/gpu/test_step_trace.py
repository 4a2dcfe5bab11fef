"""The rows that the step `trace` writes, of events that are made up."""

import pytest

from bench.gpu.decoders import Case
from bench.gpu.kernels import Event
from bench.gpu.shape import TINY, product_weights, random_runner
from bench.gpu.step_trace import NUM_ROWS, floors, kernel_rows, kind_rows, step_cells
from bench.step.decoding import LEAD, Plan

NUM_STEPS = LEAD + 2
STEP = (("_place", 0.0, 10.0), ("nvjet_head", 12.0, 20.0), ("_place", 32.0, 10.0), ("Memcpy HtoD", 36.0, 4.0))


def steps(num: int = NUM_STEPS) -> list[Event]:
    """Steps of 50 us each, the first ones slower, as while the pipeline fills."""
    events, start = [], 0.0
    for index in range(num):
        events += [Event(name, start + at, us) for name, at, us in STEP]
        start += 500.0 if index < LEAD - 1 else 50.0
    return events


def test_kinds_of_kernels_are_told_a_step_beside_their_floors() -> None:
    rows = kind_rows(32, steps(), NUM_STEPS, {"products": 15.0, "attention": 1.0})
    assert [(row["kind"], row["calls"], row["us"], row["floor"], row["floor / us"]) for row in rows] == [
        ("norms and passes", 2, 20.0, None, None),
        ("products", 1, 20.0, 15.0, 0.75),
        ("copies and bookkeeping", 1, 4.0, None, None),
    ]
    assert [row["share"] for row in rows] == [0.5, 0.5, 0.1]  # the copy runs beside a kernel
    assert {row["batch"] for row in rows} == {32}


def test_kernels_are_told_a_step_and_the_rest_in_one_line() -> None:
    rows = kernel_rows(1, steps(), NUM_STEPS)
    assert [row["kernel"] for row in rows] == ["`_place`", "`nvjet_head`", "`Memcpy HtoD`"]
    assert [(row["calls"], row["us"], row["us a call"]) for row in rows] == [(2, 20, 10), (1, 20, 20), (1, 4, 4)]

    many = [Event(f"kernel {index}", 10.0 * index, 10.0 - index / 10) for index in range(NUM_ROWS + 3)]
    *first, rest = kernel_rows(1, many, 1)
    assert [row["kernel"] for row in first] == [f"`kernel {index}`" for index in range(NUM_ROWS)]
    assert (rest["kernel"], rest["calls"]) == ("3 others", 3)
    assert sum(float(row["us"] or 0) for row in (*first, rest)) == pytest.approx(sum(event.us for event in many))


def test_the_steps_that_fill_the_pipeline_are_not_among_those_whose_gaps_count() -> None:
    cells = step_cells(1, steps(), NUM_STEPS, step_us=48.0)
    assert (cells["step"], cells["traced"], cells["busy"], cells["idle"]) == (0.048, 0.05, 0.04, pytest.approx(0.01))
    assert (cells["busy / step"], cells["kernels"]) == (pytest.approx(40 / 48), 4)
    assert (cells["longest gap"], cells["before"]) == (8.0, "`_place`")


def test_without_steps_that_can_be_told_apart_there_are_no_gaps_but_a_busy_time() -> None:
    cells = step_cells(1, steps(), 2, step_us=1000.0)  # no kernel ran twice
    assert cells["traced"] is cells["idle"] is cells["longest gap"] is None
    assert (cells["busy"], cells["before"]) == (40.0 * NUM_STEPS / 2 / 1e3, "-")


def test_floors_are_of_all_weights_and_of_the_contexts() -> None:
    runner = random_runner(TINY, "cpu", 16)
    limits = floors(runner, Case(3, Plan(17, steps=1, rounds=1)), copy_bytes_s=1e6)
    assert limits == {"products": product_weights(runner.config) * 2, "attention": 3 * 17 * 2 * 2 * 2 * 16 * 2}
