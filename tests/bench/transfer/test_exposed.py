"""The exposed transfer: what is read from an answer, and one short run of the real thing."""

import asyncio

import orjson
import pytest

from bench.records import Goal, Row
from bench.sheet import Printed
from bench.transfer.exposed import Handover, Plan, _Heard, hand_overs, handover_of, kv_bytes, write
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock

MOMENTS = {"prompt computed": 90.0, "first token": 92.0, "KV delivered": 95.0, "ready to decode": 96.0}


def test_exposed_is_from_the_end_of_the_computation_until_decode_can_start() -> None:
    seen = handover_of(10.0, [10.12, 10.15, 10.16], MOMENTS)
    assert (seen.exposed_ms, seen.sampled_ms, seen.delivered_ms, seen.joined_ms) == (6.0, 2.0, 3.0, 1.0)
    assert (seen.ttft_ms, seen.gap_ms, seen.share) == pytest.approx((120.0, 30.0, 0.05))


@pytest.mark.parametrize("name", MOMENTS)
def test_a_time_line_that_lacks_a_moment_is_no_measurement(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        handover_of(10.0, [10.12, 10.15], {each: at for each, at in MOMENTS.items() if each != name})
    with pytest.raises(ConfigError, match="1 tokens came"):
        handover_of(10.0, [10.12], MOMENTS)


def test_an_answer_is_heard_line_by_line() -> None:
    heard = _Heard()
    timeline = [{"name": "first token", "at_ms": 3.5, "worker": "prefill-0"}]
    assert heard.line(1.0, b'data: {"choices":[{"text":"a"}]}') and heard.line(1.5, b"")
    assert heard.line(2.0, b"data: " + orjson.dumps({"choices": [{"text": "b"}], "timeline": timeline}))
    assert not heard.line(3.0, b"data: [DONE]")
    assert (heard.arrivals, heard.moments, heard.error) == ([1.0, 2.0], {"first token": 3.5}, "")
    assert heard.line(4.0, b'data: {"error":{"message":"no"}}') and "no" in heard.error


def test_figures_are_medians() -> None:
    seen = [Handover(100.0, exposed, 20.0, 1.0, exposed - 2.0, 1.0) for exposed in (3.0, 4.0, 50.0)]
    sheet = Printed("exposed")
    write(sheet, {512: {"shm": seen, "zmq_tcp": seen[:1]}})
    shm, met, zmq, _ = sheet.records
    assert isinstance(shm, Row) and isinstance(zmq, Row) and isinstance(met, Goal)
    assert (shm.cells["ttft"], shm.cells["exposed"], shm.cells["exposed, p90"]) == (100.0, 4.0, 50.0)
    assert (shm.cells["share"], zmq.cells["share"], met.value, met.met) == (0.04, 0.03, 0.04, True)
    assert shm.cells["KV MB"] == kv_bytes(512) / 1e6 == 512 * 8 * 2 * 4 * 64 * 2 / 1e6


@pytest.mark.slow
def test_a_short_run_measures_both_backends() -> None:
    plan = Plan({40: 1}, "models/story", vocab_size=1024, kv_tokens=512, at_once=2)
    found = asyncio.run(hand_overs(plan, MonotonicClock()))
    assert found.keys() == {40} and found[40].keys() == {"shm", "zmq_tcp"}
    for seen in found[40].values():
        assert len(seen) == 2 and all(0 < each.exposed_ms < each.ttft_ms + each.gap_ms for each in seen)
