"""The exposed transfer: what is read from an answer, and one short run of the real thing."""

import asyncio

import pytest

from bench.records import Goal, Row
from bench.sheet import Printed
from bench.side import Answer
from bench.transfer.exposed import Plan, hand_overs, handover_of, write
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock

MOMENTS = {"prompt computed": 90.0, "first token": 92.0, "KV delivered": 95.0, "ready to decode": 96.0}


def answer(arrivals: tuple[float, ...], moments: dict[str, float]) -> Answer:
    return Answer(10.0, arrivals, 512, 0, len(arrivals), moments)


def test_exposed_is_from_the_end_of_the_computation_until_decode_can_start() -> None:
    seen = handover_of(answer((0.12, 0.15, 0.16), MOMENTS))
    parts = {"exposed": 6.0, "sampled": 2.0, "delivered": 3.0, "joined": 1.0}
    assert seen == pytest.approx({"ttft": 120.0, **parts, "gap": 30.0, "share": 0.05})


@pytest.mark.parametrize("name", MOMENTS)
def test_a_time_line_that_lacks_a_moment_is_no_measurement(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        handover_of(answer((0.12, 0.15), {moment: at for moment, at in MOMENTS.items() if moment != name}))
    with pytest.raises(ConfigError, match="1 tokens came"):
        handover_of(answer((0.12,), MOMENTS))


def test_figures_are_medians() -> None:
    seen = [
        handover_of(answer((0.1, 0.12), MOMENTS | {"prompt computed": 96.0 - exposed})) for exposed in (3.0, 4.0, 50.0)
    ]
    sheet = Printed("exposed")
    write(sheet, {512: {"shm": seen, "zmq_tcp": seen[:1]}})
    shm, met, zmq, _ = sheet.records
    assert isinstance(shm, Row) and isinstance(zmq, Row) and isinstance(met, Goal)
    assert (shm.cells["ttft"], shm.cells["exposed"], shm.cells["exposed, p90"]) == (100.0, 4.0, 50.0)
    assert (shm.cells["share"], zmq.cells["share"], met.value, met.met) == (0.04, 0.03, 0.04, True)
    assert shm.cells["KV MB"] == 512 * 8 * 2 * 4 * 64 * 2 / 1e6


@pytest.mark.slow
def test_a_short_run_measures_both_backends() -> None:
    plan = Plan({40: 1}, "models/story", vocab_size=1024, kv_tokens=512, at_once=2)
    by_length = asyncio.run(hand_overs(plan, MonotonicClock()))
    assert by_length.keys() == {40} and by_length[40].keys() == {"shm", "zmq_tcp"}
    for seen in by_length[40].values():
        assert len(seen) == 2 and all(0 < handover["exposed"] < handover["ttft"] + handover["gap"] for handover in seen)
