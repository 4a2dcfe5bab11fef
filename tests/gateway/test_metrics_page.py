"""`/metrics` as a whole: every name that docs/operations.md tells of is there, and no other."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.messages_gateway import Heartbeat, Leaving, Role
from tests.gateway.conftest import Setting
from tests.gateway.fake_worker import PATIENCE_S, STATS, Behaviour, FakeWorker

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
COUNTERS = {
    "queue_time_seconds_sum": 1.5,
    "queue_time_seconds_count": 2.0,
    "prefill_time_seconds_sum": 1.0,
    "prefill_time_seconds_count": 2.0,
    "kv_transfer_time_seconds_sum": 0.5,
    "kv_transfer_time_seconds_count": 2.0,
    "frames": 4.0,
    "bytes": 4096.0,
    "transfers_now": 1.0,
    "transfers_delivered": 2.0,
    "frames_waiting_now": 1.0,
    "bytes_in_flight_now": 64.0,
    "reservations_now": 1.0,
    "reservations_delivered": 2.0,
    "rejected_checksum": 1.0,
    "refused_messages": 3.0,
    "refused_connections_key": 1.0,
    "refused_connections_handshake": 2.0,
}
ONLY_WITH_KEYS = {"baton_connections_refused_total"}


@pytest.fixture
async def page(setting: Setting) -> list[str]:
    """The page after one request, one retry, one refusal of each kind, and a worker that counts everything."""
    first = await setting.add(Role.UNIFIED, "first", behaviour=Behaviour(stop_after=2))

    async def leave(worker: FakeWorker) -> None:
        await worker.until(lambda: bool(worker.assigned))
        await setting.add(Role.UNIFIED, "second")
        await worker.send(Leaving(worker.worker_id, worker.instance))

    async with setting.client.stream("GET", "/no-such-path"):
        pass
    leaving = asyncio.create_task(leave(first))
    assert (await setting.complete("x", max_tokens=4)).status_code == 200
    await leaving
    second = setting.workers[-1]
    await second.send(Heartbeat("somebody-else", 1, STATS))
    stats = replace(STATS, counters=COUNTERS)
    await second.send(Heartbeat(second.worker_id, second.instance, stats))
    async with asyncio.timeout(PATIENCE_S):
        while "baton_kv_transfer_frames_total{" not in (text := (await setting.client.get("/metrics")).text):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return text.splitlines()


def documented() -> set[str]:
    """Names in the tables of the operators' page."""
    return set(re.findall(r"`(baton_\w+)(?:\{[^`]*\})?`", OPERATIONS.read_text()))


async def test_the_names_are_those_of_the_operators_page(page: list[str]) -> None:
    names = {line.split()[2] for line in page if line.startswith("# TYPE baton_")}
    names = {name for name in names if not name.endswith("_created")}
    assert names | ONLY_WITH_KEYS == documented()


async def test_what_happened_is_counted(page: list[str]) -> None:
    for line in (
        'baton_requests_total{outcome="ok"} 1.0',
        "baton_request_attempts_total 2.0",
        'baton_workers_joined_total{role="unified"} 2.0',
        "baton_workers_lost_total 1.0",
        'baton_http_responses_total{status="404"} 1.0',
        'baton_request_queue_time_seconds_sum{role="unified",worker="second"} 1.5',
    ):
        assert line in page, line
    retries = [line for line in page if line.startswith("baton_request_retries_total{")]
    refused = [line for line in page if line.startswith("baton_messages_refused_total{")]
    for lines in (retries, refused):
        assert sorted(line.rsplit(" ", 1)[1] for line in lines)[-2:] == ["0.0", "1.0"]
    connections = next(line for line in page if line.startswith("baton_http_connections "))
    assert float(connections.split()[1]) >= 1
    assert any(line.startswith("process_cpu_seconds_total ") for line in page)


async def test_what_has_not_happened_yet_is_there_and_zero(setting: Setting) -> None:
    """An alert on a rate sees nothing in a number that was not there before."""
    lines = (await setting.client.get("/metrics")).text.splitlines()
    for line in (
        'baton_request_retries_total{reason="worker_lost"} 0.0',
        'baton_request_retries_total{reason="kv_not_delivered"} 0.0',
        'baton_request_retries_total{reason="layout_mismatch"} 0.0',
        'baton_workers_joined_total{role="decode"} 0.0',
        'baton_slow_readers_cut_total{reason="stalled"} 0.0',
        'baton_http_responses_total{status="503"} 0.0',
        *(
            f'baton_messages_refused_total{{reason="{each}"}} 0.0'
            for each in ("message", "of another's request", "tokens")
        ),
    ):
        assert line in lines, line
    section = OPERATIONS.read_text().partition("## What each error means")[2].partition("## ")[0]
    codes = {
        code
        for first in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", first)
    }
    assert len(codes) >= 9
    outcomes = {line for line in lines if line.startswith("baton_requests_total{")}
    assert outcomes == {f'baton_requests_total{{outcome="{each}"}} 0.0' for each in (*codes - {"code"}, "ok")}


async def test_a_refusal_that_no_route_makes_is_counted_too(setting: Setting) -> None:
    await setting.client.get("/health", headers={"x-long": "x" * 100_000})
    assert 'baton_http_responses_total{status="431"} 1.0' in (await setting.client.get("/metrics")).text.splitlines()
