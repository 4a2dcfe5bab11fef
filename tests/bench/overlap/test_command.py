"""The overlap benchmark: what is counted, and one short run of the real thing."""

import json

import pytest

from bench.overlap.__main__ import CountedStream, main, schedule_cost
from bench.overlap.decoding import Plan
from bench.overlap.kinds import KINDS, Kind
from tests.doubles.clock import VirtualClock


def test_what_launches_take_is_counted() -> None:
    clock = VirtualClock()
    stream = CountedStream(clock)
    stream.launch([lambda: clock.advance(0.25), lambda: clock.advance(0.5)])
    clock.advance(7.0)
    stream.launch([lambda: clock.advance(1.0)])
    assert stream.spent_s == 1.75


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_scheduling_cost_is_of_steps_of_the_whole_batch(kind: Kind) -> None:
    schedule_us, encode_us = schedule_cost(3, Plan(context=5, steps=4, rounds=2), kind)
    assert schedule_us > 0 and encode_us > 0


@pytest.mark.slow
def test_a_short_run_measures_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--batches", "1,2", "--scheduled", "1,4", "--kinds", "2"]
    lengths = ["--context", "8", "--steps", "3", "--rounds", "2"]
    assert main(["--model", "models/story", *sizes, *lengths]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["batch"].keys() == found["threads"]["2"].keys() == {"1", "2"}
    for by_batch in (found["batch"], *found["threads"].values()):
        for times in by_batch.values():
            assert times.keys() == {"forward_ms", "overlap_ms", "serial_ms"} and min(times.values()) > 0
    assert found["kinds"].keys() == {kind.name for kind in KINDS} >= {"top-p", "one joins, one leaves"}
    for times in found["kinds"].values():
        assert times.keys() == {"forward_ms", "overlap_ms", "serial_ms", "schedule_us"} and min(times.values()) > 0
    assert found["schedule_us"].keys() == found["encode_us"].keys() == {"1", "4"}
    assert min(found["schedule_us"].values()) > 0
