"""What is told to end in mid-stream: it finishes, or others go on, no client notices, and nothing counts as lost."""

import re
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, PATIENCE_S, BatonProcess
from tests.faults.client import Client
from tests.processes import has_ended
from tests.selecting import broad, full

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
MAX_TOKENS = 1500
BOUND = 600  # seconds, whose end no stream here waits for
NUM_STREAMS = 4


def streams_of(baton: BatonProcess, number: int = NUM_STREAMS) -> list[Client]:
    """Streams that have begun."""
    clients = [Client(baton.url, [5, 6, index], MAX_TOKENS).start() for index in range(number)]
    assert all(client.has_begun() for client in clients)
    return clients


def verdicts(clients: Sequence[Client]) -> list[str]:
    assert all(client.has_ended() for client in clients)
    return [client.verdict(RUNNER.expected_tokens) for client in clients]


def row(baton: BatonProcess, worker_id: str) -> dict[str, object]:
    return next((each for each in baton.workers() if each["id"] == worker_id), {})


def serve(folder: Path, log: Path, *flags: str) -> BatonProcess:
    shared = ("--port", "0", "--page-size", "16", "--pairing", "round_robin", "--max-total-tokens", "30000")
    bound = () if "--drain-timeout" in flags else ("--drain-timeout", str(BOUND))
    return BatonProcess(str(folder), *shared, *bound, *flags, log=log, program=FAKE)


LAYOUTS = {
    "pair": ("--prefill", "1", "--decode", "1"),
    "unified": ("--unified", "2"),
    "group": ("--prefill", "1", "--decode", "1", "--dp-size", "2", "--enable-dp-attention"),
}


@pytest.mark.parametrize(
    "case",
    [
        "pair SIGINT baton streams",
        broad("pair SIGTERM all rests"),
        full("unified SIGTERM baton streams"),
        full("group SIGINT baton streams"),
        broad("group SIGTERM all rests"),
    ],
)
def test_an_orderly_end_logs_no_warning(case: str, fake_folder: Path, tmp_path: Path) -> None:
    """Ctrl-C and `kill` reach `baton` alone; others send SIGTERM to all processes of a service."""
    layout, name, to, what = case.split()
    with serve(fake_folder, tmp_path / "log", *LAYOUTS[layout]) as baton:
        clients = streams_of(baton) if what == "streams" else []
        workers = [each["id"] for each in baton.workers()]
        for child in baton.children() if to == "all" else ():
            child.send_signal(signal.Signals[name])
        assert baton.end(signal.Signals[name]) == 0
        assert verdicts(clients) == ["exact"] * len(clients)

    text = baton.log_text()
    assert " info baton stopping" in text and re.search(r" info gateway stopped\b", text) and len(workers) >= 2
    received = "SIG[A-Z]+" if to == "all" else "SIGTERM"
    assert all(re.search(rf" info {re.escape(worker)} left signal={received}\b", text) for worker in workers)
    ready_at = max(each.end() for each in re.finditer(r" ready role=.*$", text, re.MULTILINE))
    assert not re.findall(r"^.* (?:warning|error) .*$", text[ready_at:], re.MULTILINE)


RUN = rf"baton decode-1: [12] requests? runs?; ending in at most {BOUND} s"
PAIRS = ("--prefill", "1", "--decode", "2")


def test_scaling_down_breaks_no_stream(fake_folder: Path, tmp_path: Path) -> None:
    """One of two decode workers finishes what it has, and the other one gets what is new."""
    with serve(fake_folder, tmp_path / "log", *PAIRS) as baton:
        clients = streams_of(baton)
        leaves = baton.worker("decode-1")
        assert baton.wait_until(lambda: row(baton, "decode-1")["running"])
        leaves.send_signal(signal.SIGTERM)
        assert baton.wait_until(lambda: re.search(RUN, baton.log_text())), "the signal came while streams ran"
        assert baton.tokens([9, 9], max_tokens=5, temperature=0) == RUNNER.expected_tokens([9, 9], 5)
        assert verdicts(clients) == ["exact"] * NUM_STREAMS
        assert baton.wait_until(lambda: has_ended(leaves) and "decode-1 has left" in baton.log_text())
        assert baton.metric("workers_lost_total") == baton.metric("request_retries_total") == 0
        assert baton.metric("workers_left_total") == 1
        assert baton.tokens([9, 8], max_tokens=5, temperature=0) == RUNNER.expected_tokens([9, 8], 5)
        assert baton.wait_for_rest() and len(baton.children()) == 3, "it is not started again"
        assert not re.search(r" (warning|error) ", baton.log_text().partition("decode-1 ready")[2])


@pytest.mark.parametrize("how", [full("no bound"), broad("a second signal")])
def test_what_is_not_finished_in_time_goes_on_elsewhere(how: str, fake_folder: Path, tmp_path: Path) -> None:
    bound = ("--drain-timeout", "0") if how == "no bound" else ()
    with serve(fake_folder, tmp_path / "log", *PAIRS, *bound) as baton:
        clients = streams_of(baton)
        leaves = baton.worker("decode-1")
        leaves.send_signal(signal.SIGTERM)
        if how == "a second signal":
            assert baton.wait_until(lambda: row(baton, "decode-1").get("state") == "leaving")
            leaves.send_signal(signal.SIGTERM)
        assert verdicts(clients) == ["exact"] * NUM_STREAMS
        assert baton.wait_until(lambda: has_ended(leaves) and "decode-1 has left" in baton.log_text())
        assert baton.metric("request_retries_total", reason="worker_left") >= 1, "streams ran there"
        assert baton.metric("request_retries_total") == baton.metric("request_retries_total", reason="worker_left")
        assert baton.metric("workers_lost_total") == 0 and baton.wait_for_rest()


@pytest.mark.broad
def test_a_prefill_worker_that_leaves_breaks_no_stream(fake_folder: Path, tmp_path: Path) -> None:
    with serve(fake_folder, tmp_path / "log", "--prefill", "2", "--decode", "1") as baton:
        clients = [Client(baton.url, [index, *range(900)], 20).start() for index in range(24)]
        leaves = baton.worker("prefill-1")
        assert baton.wait_until(lambda: row(baton, "prefill-1")["running"])
        leaves.send_signal(signal.SIGTERM)
        assert verdicts(clients) == ["exact"] * 24
        assert baton.wait_until(lambda: has_ended(leaves) and "prefill-1 has left" in baton.log_text())
        assert baton.metric("workers_lost_total") == 0 and baton.wait_for_rest()
        assert baton.metric("request_retries_total") == baton.metric("request_retries_total", reason="worker_left")


@pytest.mark.parametrize(
    "signalled",
    [
        pytest.param(("unified-1.1",), marks=pytest.mark.broad, id="the idle one"),
        pytest.param(("unified-1.0", "unified-1.1"), marks=pytest.mark.full, id="all"),
    ],
)
def test_a_group_leaves_as_one(signalled: Sequence[str], fake_folder: Path, tmp_path: Path) -> None:
    """Its idle rank stays as long as the other one has a stream, whose steps need both."""
    ranks = ("--dp-size", "2", "--enable-dp-attention", "--prefill", "0", "--decode", "0", "--unified", "2")
    with serve(fake_folder, tmp_path / "log", *ranks) as baton:
        clients = streams_of(baton, 3)  # in turns: the last one is alone in its group
        members = {name: baton.worker(name) for name in ("unified-1.0", "unified-1.1")}
        for name in signalled:
            members[name].send_signal(signal.SIGTERM)
        assert baton.wait_until(lambda: {row(baton, name).get("state") for name in members} == {"leaving"})
        assert not clients[2].ended_at, "it runs on while its group leaves"

        assert verdicts(clients) == ["exact"] * 3
        assert baton.wait_until(lambda: all(map(has_ended, members.values())))
        assert baton.wait_until(lambda: "info baton unified-1 has left" in baton.log_text())
        assert "group is broken" not in baton.log_text()
        assert baton.metric("workers_lost_total") == baton.metric("request_retries_total") == 0
        assert baton.metric("workers_left_total") == 2 and baton.wait_for_rest()


@pytest.mark.parametrize("number", [signal.SIGTERM, broad(signal.SIGINT)])
def test_the_gateway_leaves_its_port_and_finishes_its_streams(
    number: signal.Signals, fake_folder: Path, tmp_path: Path
) -> None:
    with serve(fake_folder, tmp_path / "log", *PAIRS) as baton:
        clients, children = streams_of(baton), baton.children()
        url = httpx.URL(baton.url)
        baton.http.close()
        baton.process.send_signal(number)
        said = f"gateway: {NUM_STREAMS} requests run; ending in at most {BOUND} s; again to end now"
        assert baton.wait_until(lambda: said in baton.log_text())
        assert url.port is not None
        with socket.create_server((url.host, url.port)):
            assert any(not client.ended_at for client in clients), "the port is free while streams run"
        assert verdicts(clients) == ["exact"] * NUM_STREAMS
        assert baton.process.wait(PATIENCE_S) == 0
        assert all(map(has_ended, children))
        assert baton.process.stdout is not None
        baton.process.stdout.close()
