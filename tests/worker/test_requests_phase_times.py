import pytest

from protocol.messages_gateway import Assign, SamplingParams
from protocol.worker_facts import TIME_EDGES_S, Stamp
from tests.doubles.clock import VirtualClock
from worker.requests import Assigned, PhaseTimes


def make_request(timeline: bool = False) -> Assigned:
    return Assigned(Assign("r", 0, (1,), SamplingParams(4), 1, None, timeline=timeline))


def make_phases() -> PhaseTimes:
    return PhaseTimes(VirtualClock(), "worker")


@pytest.mark.parametrize(
    "stamps, expected",
    [
        (
            {"queued at decode": 1.0, "reserved, job sent": 3.0, "first frame landed": 10.0, "KV delivered": 10.5},
            {"queue_time": 2.0, "kv_transfer_time": 0.5},
        ),
        (
            {
                "job received": 0.0,
                "prefill start": 0.25,
                "prompt computed": 1.0,
                "first token": 1.25,
                "KV acknowledged": 1.5,
            },
            {"queue_time": 0.25, "prefill_time": 1.0, "kv_handover_time": 0.5},
        ),
        ({"queued": 0.0, "prefill start": 0.25, "first token": 1.25}, {"queue_time": 0.25, "prefill_time": 1.0}),
    ],
)
def test_phases_of_each_role(stamps: dict[str, float], expected: dict[str, float]) -> None:
    phases = make_phases()
    first, second = make_request(), make_request()
    for name, now in stamps.items():
        phases.stamp(first, name, now)
        phases.stamp(second, name, 100 + now)
    assert {phase: spread.seconds for phase, spread in phases.spreads.items()} == {
        phase: 2 * seconds for phase, seconds in expected.items()
    }
    assert {sum(spread.counts) for spread in phases.spreads.values()} == {2}


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (0.25, 7), (60.0, 14), (60.5, 15), (1e6, 15)]
)
def test_a_bucket_holds_its_edge_and_the_last_the_rest(seconds: float, bucket: int) -> None:
    phases, request = make_phases(), make_request()
    phases.stamp(request, "queued", 0.0)
    phases.stamp(request, "prefill start", seconds)
    counts = phases.spreads["queue_time"].counts
    assert len(counts) == len(TIME_EDGES_S) + 1 and [place for place, count in enumerate(counts) if count] == [bucket]


def test_a_phase_that_another_request_began_is_not_counted() -> None:
    phases = make_phases()
    phases.stamp(make_request(), "queued", 0.0)
    phases.stamp(make_request(), "prefill start", 5.0)  # another one: its queue time is not known
    assert phases.spreads == {}


@pytest.mark.parametrize("timeline", [False, True])
def test_a_client_gets_stamps_if_it_asked_for_them(timeline: bool) -> None:
    phases, request = make_phases(), make_request(timeline)
    phases.stamp(request, "queued", 3.0)
    phases.stamp(request, "prefill start")
    expected = [Stamp("queued", 3.0, "worker"), Stamp("prefill start", 0.0, "worker")]
    assert request.stamps == (expected if timeline else [])
