"""`/metrics` as a whole: every name that docs/operations.md tells of is there, and no other. Dashboard and scrape
configuration name only what is there."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.app import metrics_page
from protocol.messages_gateway import Heartbeat, Left, Role
from protocol.worker_facts import TimeSpread
from runtime.settings import GatewaySettings
from testkit.fake_worker import PATIENCE_S, STATS, Behaviour, FakeWorker
from tests.gateway.conftest import Setting
from tests.gateway.folders import EOS

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
COUNTERS = {
    "frames": 4.0,
    "bytes": 4096.0,
    "transfers_now": 1.0,
    "transfers_delivered": 2.0,
    "frames_waiting_now": 1.0,
    "bytes_in_flight_now": 64.0,
    "reservations_now": 1.0,
    "reservations_delivered": 2.0,
    "rejected_checksum": 1.0,
    "spills": 1.0,
    "spilled_now": 1.0,
    "spec_proposed_0": 5.0,
    "spec_accepted_0": 4.0,
    "spec_plain_launches": 7.0,
    "idle_launches": 6.0,
    "refused_messages": 3.0,
    "refused_connections_key": 1.0,
    "refused_connections_handshake": 2.0,
}
TIMES = {phase: TimeSpread((0, 2, *[0] * 14), 1.5) for phase in metrics_page.TIMES}
ONLY_WITH_KEYS = {"baton_connections_refused_total"}


@pytest.fixture
async def page(setting: Setting) -> list[str]:
    """The page after one request, one retry, one refusal of each kind, and a worker that counts everything."""
    first = await setting.add(Role.UNIFIED, "first", behaviour=Behaviour(stop_after=2))

    async def leave(worker: FakeWorker) -> None:
        await worker.until(lambda: bool(worker.assigned))
        await setting.add(Role.UNIFIED, "second")
        await worker.send(Left(worker.worker_id, worker.instance))

    async with setting.client.stream("GET", "/no-such-path"):
        pass
    leaving = asyncio.create_task(leave(first))
    assert (await setting.complete("x", max_tokens=4)).status_code == 200
    await leaving
    second = setting.workers[-1]
    await second.send(Heartbeat("somebody-else", 1, STATS))
    second.stats = replace(STATS, counters=COUNTERS, times=TIMES)
    async with asyncio.timeout(PATIENCE_S):
        while "baton_kv_transfer_frames_total{" not in (text := (await setting.client.get("/metrics")).text):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return text.splitlines()


def documented() -> set[str]:
    """Names in the tables of the operators' page."""
    return set(re.findall(r"`(baton_\w+)(?:\{[^`]*\})?`", OPERATIONS.read_text()))


async def test_the_names_are_those_of_the_operators_page(page: list[str]) -> None:
    names = {line.split()[2] for line in page if line.startswith("# TYPE baton_")}
    assert names | ONLY_WITH_KEYS == documented()


async def test_what_happened_is_counted(page: list[str]) -> None:
    for line in (
        'baton_requests_total{model_name="story",outcome="ok"} 1.0',
        'baton_request_attempts_total{model_name="story"} 2.0',
        'baton_workers_joined_total{model_name="story",role="unified"} 2.0',
        'baton_workers_lost_total{model_name="story"} 1.0',
        'baton_http_responses_total{model_name="story",status="404"} 1.0',
        'baton_request_queue_time_seconds_sum{model_name="story",role="unified",worker="second"} 1.5',
    ):
        assert line in page, line
    retries = [line for line in page if line.startswith("baton_request_retries_total{")]
    refused = [line for line in page if line.startswith("baton_messages_refused_total{")]
    for lines in (retries, refused):
        assert sorted(line.rsplit(" ", 1)[1] for line in lines)[-2:] == ["0.0", "1.0"]
    connections = next(line for line in page if line.startswith("baton_http_connections{"))
    assert float(connections.split()[1]) >= 1
    assert any(line.startswith("process_cpu_seconds_total ") for line in page)


async def test_what_has_not_happened_yet_is_there_and_zero(setting: Setting) -> None:
    """An alert on a rate sees nothing in a number that was not there before."""
    lines = (await setting.client.get("/metrics")).text.splitlines()
    for line in (
        'baton_request_retries_total{model_name="story",reason="worker_lost"} 0.0',
        'baton_request_retries_total{model_name="story",reason="kv_not_delivered"} 0.0',
        'baton_request_retries_total{model_name="story",reason="layout_mismatch"} 0.0',
        'baton_workers_joined_total{model_name="story",role="decode"} 0.0',
        'baton_slow_readers_cut_total{model_name="story",reason="stalled"} 0.0',
        'baton_http_responses_total{model_name="story",status="503"} 0.0',
        *(
            f'baton_messages_refused_total{{model_name="story",reason="{each}"}} 0.0'
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
    wanted = (*codes - {"code"}, "ok")
    assert outcomes == {f'baton_requests_total{{model_name="story",outcome="{each}"}} 0.0' for each in wanted}


async def test_a_refusal_that_no_route_makes_is_counted_too(setting: Setting) -> None:
    await setting.client.get("/health", headers={"x-long": "x" * 100_000})
    assert (
        'baton_http_responses_total{model_name="story",status="431"} 1.0'
        in (await setting.client.get("/metrics")).text.splitlines()
    )


async def test_metrics_of_each_choice(setting: Setting) -> None:
    """Lengths, reasons and times are counted once a choice; tokens that never came have no time."""
    await setting.add_pair(Behaviour(lambda assign, choice: [65] * (3 if choice else 9) + [EOS], pause_s=0.002))
    await setting.complete(["x" * 30, "y"], max_tokens=8, n=2)
    await setting.complete("x", max_tokens=1)
    await setting.complete("xABC", max_tokens=8, stop="AA")
    text = (await setting.client.get("/metrics")).text
    for name, le, count in (
        ("request_prompt_tokens", 1, 2),
        ("request_prompt_tokens", 20, 3),
        ("request_prompt_tokens", 50, 4),
        ("request_generation_tokens", 1, 1),
        ("request_generation_tokens", 2, 2),
        ("request_generation_tokens", 5, 4),
        ("request_generation_tokens", 10, 6),
    ):
        assert f'baton_{name}_bucket{{le="{le}.0",model_name="story"}} {count}.0' in text, (name, le)
    for line in (
        'request_success_total{finished_reason="length",model_name="story"} 3.0',
        'request_success_total{finished_reason="stop",model_name="story"} 3.0',
        'generation_tokens_total{model_name="story"} 27.0',
        'requests_in_flight{model_name="story"} 0.0',
        'time_to_first_token_seconds_count{model_name="story"} 3.0',
        'request_decode_time_seconds_count{model_name="story"} 6.0',
        'request_time_per_output_token_seconds_count{model_name="story"} 5.0',
    ):
        assert f"baton_{line}" in text, line
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines())
    decode_s = float(numbers['baton_request_decode_time_seconds_sum{model_name="story"}'])
    e2e_s = float(numbers['baton_e2e_request_latency_seconds_sum{model_name="story"}'])
    ttft_s = float(numbers['baton_time_to_first_token_seconds_sum{model_name="story"}'])
    assert 0 < decode_s <= 4 * (e2e_s - ttft_s)  # four choices at once in the first request


OBSERVABILITY = Path(__file__).parents[3] / "deploy" / "observability"
ADDED_BY_PROMETHEUS = {"job", "instance"}


def labels_of(page: list[str]) -> dict[str, set[str]]:
    """Labels by name of the samples on the page."""
    found: dict[str, set[str]] = {}
    for line in page:
        if not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def queries() -> list[tuple[str, str]]:
    """Expression and legend of every query of the dashboard, also those of its variables."""
    dashboard = json.loads((OBSERVABILITY / "grafana.json").read_text())
    targets = [(each["expr"], each["legendFormat"]) for panel in dashboard["panels"] for each in panel["targets"]]
    variables = [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    return targets + [(query, "") for query in variables]


async def test_the_dashboard_asks_only_for_what_is_there(page: list[str]) -> None:
    known = labels_of(page)
    assert len(queries()) > 30
    for expression, legend in queries():
        names = re.findall(r"\b((?:baton|process)_\w+)", expression)
        assert names and all(name in known for name in names), (expression, names)
        by = [label for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(", ")]
        matched = re.findall(r'(\w+)(?:=~|=|!=|!~)"', expression)
        asked = {*by, *matched, *re.findall(r"label_values\(\w+, (\w+)\)", expression)}
        for name in names:
            assert asked <= known[name] | ADDED_BY_PROMETHEUS, (name, asked - known[name])
        assert set(re.findall(r"{{(\w+)}}", legend)) <= (set(by) or known[names[0]]), (expression, legend)


async def test_every_variable_of_a_query_is_declared() -> None:
    dashboard = json.loads((OBSERVABILITY / "grafana.json").read_text())
    declared = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval"}
    for expression, _ in queries():
        assert set(re.findall(r"\$(\w+)", expression)) <= declared, expression
    assert all('job=~"$job"' in expression for expression, _ in queries() if "$__" in expression or "{" in expression)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) and all(panel["title"] and panel["description"] for panel in dashboard["panels"])


async def test_prometheus_scrapes_where_the_page_is(setting: Setting) -> None:
    text = (OBSERVABILITY / "prometheus.yml").read_text()
    [path] = re.findall(r"metrics_path: (\S+)", text)
    [port] = re.findall(r'targets: \["127\.0\.0\.1:(\d+)"\]', text)
    assert (await setting.client.get(path)).headers["content-type"].startswith("text/plain; version=0.0.4")
    assert int(port) == GatewaySettings.__dataclass_fields__["port"].default


async def test_no_number_says_when_it_was_made_and_all_of_ours_name_the_model(page: list[str]) -> None:
    assert not any("_created" in line for line in page)
    for name, labels in labels_of(page).items():
        assert ("model_name" in labels) == name.startswith("baton_"), name
