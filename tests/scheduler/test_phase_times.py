import gc

import pytest

from scheduler.phase_times import PhaseTimes


class Request:
    """Anything that can be told from others of its kind."""


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
    phases = PhaseTimes()
    first, second = Request(), Request()
    for name, now in stamps.items():
        phases.note(first, name, now)
        phases.note(second, name, 100 + now)
    for phase, seconds in expected.items():
        assert phases.counters.pop(f"{phase}_seconds_sum") == 2 * seconds
        assert phases.counters[f"{phase}_seconds_count"] == 2
    assert len(phases.counters) == 2 * len(expected)


def test_nothing_is_kept_of_requests_that_are_gone() -> None:
    phases = PhaseTimes()
    phases.note(Request(), "queued", 0.0)
    gc.collect()
    assert len(phases._stamps) == 0
    phases.note(Request(), "prefill start", 5.0)  # another one: its queue time is not known
    assert phases.counters == {}
