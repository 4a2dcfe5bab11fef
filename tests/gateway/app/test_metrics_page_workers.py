from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.app.metrics_page import WorkerCollector, shown
from gateway.routing.members import Member
from protocol.messages_gateway import Role
from protocol.messages_group import GroupPlace
from protocol.worker_facts import KvPages, TimeSpread, WorkerStats
from tests.gateway.worker_ends import register

STATS = WorkerStats(KvPages(total=10, free=4, owned=5, cached=1), running=3, waiting=2, queued_prompt_tokens=7)
SENT = {"frames": 12.0, "bytes": 34.0, "transfers_now": 2, "frames_waiting_now": 1, "bytes_in_flight_now": 9}
LANDED = {
    "frames": 11.0,
    "reservations_now": 4,
    "rejected_checksum": 1,
    "rejected_size": 2,
    "reservations_delivered": 6,
}


def page(*members: Member) -> list[str]:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(lambda: members))
    return generate_latest(registry).decode().splitlines()


def member(worker_id: str, role: Role, counters: dict[str, float]) -> Member:
    return Member(register(worker_id, 1, role), replace(STATS, counters=counters), 0.0)


def test_numbers_have_a_subject_a_unit_and_the_right_type() -> None:
    landed = LANDED | {"spills": 3, "spilled_now": 2, "spec_proposed_0": 9, "spec_accepted_0": 6, "spec_accepted_1": 4}
    lines = page(member("p", Role.PREFILL, SENT | {"transfers_cancelled": 3}), member("d", Role.DECODE, landed))
    for line in (
        "# TYPE baton_kv_transfer_frames_total counter",
        'baton_kv_transfer_frames_total{role="prefill",worker="p"} 12.0',
        'baton_kv_transfer_frames_total{role="decode",worker="d"} 11.0',
        'baton_kv_transfer_bytes_total{role="prefill",worker="p"} 34.0',
        "# TYPE baton_kv_transfers gauge",
        'baton_kv_transfers{role="prefill",worker="p"} 2.0',
        'baton_kv_transfer_waiting_frames{role="prefill",worker="p"} 1.0',
        'baton_kv_transfer_in_flight_bytes{role="prefill",worker="p"} 9.0',
        'baton_kv_transfers_ended_total{outcome="cancelled",role="prefill",worker="p"} 3.0',
        "# TYPE baton_reservations gauge",
        'baton_reservations{role="decode",worker="d"} 4.0',
        'baton_reservations_ended_total{outcome="delivered",role="decode",worker="d"} 6.0',
        "# TYPE baton_kv_transfer_rejected_frames_total counter",
        'baton_kv_transfer_rejected_frames_total{reason="checksum",role="decode",worker="d"} 1.0',
        'baton_kv_transfer_rejected_frames_total{reason="size",role="decode",worker="d"} 2.0',
        'baton_kv_spills_total{role="decode",worker="d"} 3.0',
        'baton_spilled_requests{role="decode",worker="d"} 2.0',
        'baton_spec_proposed_tokens_total{position="0",role="decode",worker="d"} 9.0',
        'baton_spec_accepted_tokens_total{position="0",role="decode",worker="d"} 6.0',
        'baton_spec_accepted_tokens_total{position="1",role="decode",worker="d"} 4.0',
        'baton_running_requests{role="decode",worker="d"} 3.0',
        'baton_kv_usage_ratio{role="decode",worker="d"} 0.5',
        'baton_kv_pages{role="decode",state="cached",worker="d"} 1.0',
    ):
        assert line in lines, line
    assert not any("_now" in line for line in lines)
    assert len({line for line in lines if line.startswith("# TYPE")}) == sum(
        line.startswith("# TYPE") for line in lines
    )


def test_ranks_name_their_group_and_count_idle_launches() -> None:
    place = GroupPlace("g", 4, 1, 2)
    rank = Member(register("g.1", 1, place=place), replace(STATS, counters={"idle_launches": 6}), 0.0)
    lines = page(rank, member("d", Role.DECODE, {"idle_launches": 0}))
    for line in (
        "# TYPE baton_idle_launches_total counter",
        'baton_idle_launches_total{role="decode",worker="g.1"} 6.0',
        'baton_idle_launches_total{role="decode",worker="d"} 0.0',
    ):
        assert line in lines, line
    rows = [line for line in lines if line.startswith("baton_group_rank_info{")]
    assert rows == ['baton_group_rank_info{epoch="4",group="g",rank="1",role="decode",size="2",worker="g.1"} 1.0']


def test_times_of_phases_are_histograms() -> None:
    counts = (0, 1, 0, 2, *[0] * 11, 1)
    queued = replace(STATS, times={"queue_time": TimeSpread(counts, 70.5), "unheard_of": TimeSpread(counts, 1.0)})
    lines = page(Member(register("d", 1, Role.DECODE), queued, 0.0), member("p", Role.PREFILL, {}))
    for line in (
        "# TYPE baton_request_queue_time_seconds histogram",
        'baton_request_queue_time_seconds_bucket{le="0.001",role="decode",worker="d"} 0.0',
        'baton_request_queue_time_seconds_bucket{le="0.0025",role="decode",worker="d"} 1.0',
        'baton_request_queue_time_seconds_bucket{le="0.01",role="decode",worker="d"} 3.0',
        'baton_request_queue_time_seconds_bucket{le="60.0",role="decode",worker="d"} 3.0',
        'baton_request_queue_time_seconds_bucket{le="+Inf",role="decode",worker="d"} 4.0',
        'baton_request_queue_time_seconds_count{role="decode",worker="d"} 4.0',
        'baton_request_queue_time_seconds_sum{role="decode",worker="d"} 70.5',
        "# TYPE baton_kv_handover_seconds histogram",
    ):
        assert line in lines, line
    assert not any('worker="p"' in line and "_seconds" in line for line in lines)
    assert not any("unheard_of" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "public", "is_gauge"),
    [("odd_things", "worker_odd_things", False), ("odd_total", "worker_odd", False), ("odd_now", "worker_odd", True)],
)
def test_unknown_numbers_keep_their_names(name: str, public: str, is_gauge: bool) -> None:
    assert (shown(name).name, shown(name).is_gauge) == (public, is_gauge)
    assert shown(name).help.startswith("Odd")


def test_a_name_that_is_none_is_not_shown() -> None:
    assert not any("evil" in line for line in page(member("p", Role.PREFILL, {'evil{x="1"}': 1.0})))
