"""What dies or hangs in a real deployment is started again where it was, and answers are exact again."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from runtime.clock import MonotonicClock
from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, BatonProcess
from tests.faults.client import Client
from tests.processes import command_line
from tests.selecting import broad, full

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
HANG_LIMIT = 6  # seconds
SILENCE_LIMIT = 4


@pytest.fixture(scope="module")
def baton(fake_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    """One deployment goes through most faults; that the one before has left nothing wrong is part of each test."""
    log = tmp_path_factory.mktemp("supervised") / "log"
    flags = ("--port", "0", "--page-size", "4", "--hang-limit", str(HANG_LIMIT))
    with BatonProcess(str(fake_folder), *flags, log=log, program=FAKE) as found:
        yield found


def pid_of(baton: BatonProcess, name: str) -> int:
    """The process of a worker, or of the "gateway"; 0 when there is none now."""
    for child in baton.children():
        argv = command_line(child)
        if name in argv or f'"worker_id": "{name}"' in " ".join(argv):
            return child.pid
    return 0


def is_whole(baton: BatonProcess) -> bool:
    try:
        return {row["id"]: row["pid"] for row in baton.workers()} == {
            name: pid_of(baton, name) for name in ("prefill-0", "decode-0")
        }
    except httpx.HTTPError:
        return False


def running(baton: BatonProcess, role: str) -> float:
    """The workers of a role that the launcher has running, as the gateway knows it."""
    return baton.metric("supervised_workers", role=role, state="running")


def expect_exact_again(baton: BatonProcess) -> None:
    assert baton.wait_until(lambda: is_whole(baton))
    assert baton.tokens([9, 9], max_tokens=5, temperature=0) == RUNNER.expected_tokens([9, 9], 5)
    assert baton.wait_for_rest()
    assert len(baton.children()) == 3


@pytest.mark.parametrize("name", [broad("prefill-0"), "decode-0"])
def test_a_worker_that_is_killed_is_started_again(baton: BatonProcess, name: str) -> None:
    old, control = pid_of(baton, name), pid_of(baton, "gateway")
    os.kill(old, signal.SIGKILL)
    assert baton.wait_until(lambda: pid_of(baton, name) not in (0, old))
    expect_exact_again(baton)
    assert pid_of(baton, "gateway") == control
    assert baton.wait_until(lambda: running(baton, name.partition("-")[0]) == 1)
    assert baton.get("/health") == {"status": "ok"}
    assert baton.wait_until(lambda: re.search(rf"Z info baton {name} serves again after \d+\.\d s", baton.log_text()))
    assert re.search(
        rf"Z error baton {name} was killed by SIGKILL(; its last line: .*)?; it is started again", baton.log_text()
    )


@pytest.mark.parametrize("name", [full("prefill-0"), "decode-0"])
def test_no_client_notices_the_kill_of_the_only_worker_of_a_role(name: str, fake_folder: Path, tmp_path: Path) -> None:
    """Those that it had and those that come while it is away wait for the next one, and all answers are exact."""
    flags = ("--port", "0", "--page-size", "4", "--max-total-tokens", "32768", "--retry-wait", "600")
    with BatonProcess(str(fake_folder), *flags, log=tmp_path / "log", program=FAKE) as baton:
        clients = [Client(baton.url, [number, *range(50)], 1500).start() for number in range(4)]
        assert all(client.has_begun() for client in clients)
        killed = pid_of(baton, name)
        baton.process.send_signal(signal.SIGSTOP)  # so that nothing starts it again yet
        try:
            os.kill(killed, signal.SIGKILL)
            assert baton.wait_until(lambda: baton.instance(name) == 0)
            assert baton.http.get("/health").status_code == 503
            num_running = baton.metric("requests_in_flight")
            assert num_running > 0 or name == "prefill-0", "it was killed when nobody needed it"
            clients += [Client(baton.url, [number, *range(90)], 20).start() for number in range(3)]
            assert baton.wait_until(
                lambda: baton.metric("requests_in_flight") >= 3 and "request failed" not in baton.log_text()
            )
            assert not any(client.tokens or client.error for client in clients[4:])
        finally:
            baton.process.send_signal(signal.SIGCONT)

        assert all(client.has_ended() for client in clients)
        assert [client.verdict(RUNNER.expected_tokens) for client in clients] == ["exact"] * 7
        assert pid_of(baton, name) not in (0, killed)
        assert baton.log_text().count(" request has waited ") == 3
        assert name == "prefill-0" or baton.log_text().count(" request retried ") >= num_running
        expect_exact_again(baton)


def test_a_gateway_that_is_killed_returns_to_its_ports(baton: BatonProcess) -> None:
    """The client's URL is the same; workers stay the processes they are and join again."""
    expect_exact_again(baton)
    before = {name: pid_of(baton, name) for name in ("prefill-0", "decode-0")}
    old = pid_of(baton, "gateway")
    os.kill(old, signal.SIGKILL)
    assert baton.wait_until(lambda: pid_of(baton, "gateway") not in (0, old))
    expect_exact_again(baton)
    assert {name: pid_of(baton, name) for name in before} == before
    assert baton.wait_until(lambda: running(baton, "decode") == 1), "the new gateway is told, too"
    assert re.search(r"Z error baton gateway was killed by SIGKILL.*; it is started again at once", baton.log_text())


@pytest.mark.parametrize("times", [3, full(7)])
def test_a_gateway_that_is_killed_again_and_again_serves_again_after_waits_that_grow(
    times: int, fake_folder: Path, tmp_path: Path
) -> None:
    """`baton serve` never ends because of it, and the workers stay the processes they are."""
    with BatonProcess(str(fake_folder), "--port", "0", log=tmp_path / "log", program=FAKE) as baton:
        workers = {name: pid_of(baton, name) for name in ("prefill-0", "decode-0")}
        pids = [pid_of(baton, "gateway")]
        for _ in range(times):
            os.kill(pids[-1], signal.SIGKILL)
            assert baton.wait_until(lambda: pid_of(baton, "gateway") not in (0, *pids))
            pids.append(pid_of(baton, "gateway"))
            expect_exact_again(baton)
        assert len(set(pids)) == times + 1
        assert {name: pid_of(baton, name) for name in workers} == workers
        waits = re.findall(r"Z error baton gateway was killed by SIGKILL.*; it is started again (.*)", baton.log_text())
        grown = [
            f"in {wait} s, restart {number} in a row" for number, wait in enumerate("0.5 1 2 4 8 16".split(), start=2)
        ]
        assert waits == ["at once", *grown][:times]
        assert baton.process.poll() is None


def identities(baton: BatonProcess) -> list[tuple[Any, ...]]:
    """Of the gateway its process; of each worker its process and its instance."""
    workers = [(row["id"], row["pid"], row["instance"]) for row in baton.workers()]
    return [("gateway", pid_of(baton, "gateway")), *sorted(workers)]


@pytest.mark.broad
def test_a_gateway_that_was_paused_for_longer_than_a_worker_may_be_silent_loses_none(
    fake_folder: Path, tmp_path: Path
) -> None:
    flags = ("--port", "0", "--silence-limit", str(SILENCE_LIMIT), "--hang-limit", "0")
    with BatonProcess(str(fake_folder), *flags, log=tmp_path / "log", program=FAKE) as baton:
        expect_exact_again(baton)
        before = identities(baton)
        gateway, clock = psutil.Process(pid_of(baton, "gateway")), MonotonicClock()
        gateway.suspend()
        try:
            assert baton.wait_until(lambda: gateway.status() == psutil.STATUS_STOPPED)
            until = clock.now() + SILENCE_LIMIT + 2  # how long the pause lasts is what is tested
            assert baton.wait_until(lambda: clock.now() > until)
        finally:
            gateway.resume()
        expect_exact_again(baton)
        assert identities(baton) == before
        assert "worker lost" not in baton.log_text() and " error baton " not in baton.log_text()


@pytest.mark.parametrize("name", ["prefill-0", broad("gateway")])
def test_what_never_wakes_is_killed_and_started_again(baton: BatonProcess, name: str) -> None:
    expect_exact_again(baton)
    old = pid_of(baton, name)
    os.kill(old, signal.SIGSTOP)
    assert baton.wait_until(lambda: pid_of(baton, name) not in (0, old))
    expect_exact_again(baton)
    assert re.search(rf"{name} gave no sign of life for \d+ s and was killed; it is started again", baton.log_text())


@pytest.mark.broad
def test_a_launcher_that_was_paused_goes_on(baton: BatonProcess) -> None:
    """Its pause is nobody's silence, and what ended meanwhile is started again."""
    expect_exact_again(baton)
    others = {name: pid_of(baton, name) for name in ("gateway", "prefill-0")}
    killed = pid_of(baton, "decode-0")
    baton.process.send_signal(signal.SIGSTOP)
    try:
        os.kill(killed, signal.SIGKILL)
        assert baton.wait_until(lambda: baton.instance("decode-0") == 0)
        assert baton.http.get("/health").status_code == 503
    finally:
        baton.process.send_signal(signal.SIGCONT)
    assert baton.wait_until(lambda: pid_of(baton, "decode-0") not in (0, killed))
    expect_exact_again(baton)
    assert {name: pid_of(baton, name) for name in others} == others


@pytest.mark.broad
def test_what_cannot_stay_is_given_up_and_the_rest_answers_503(fake_folder: Path, tmp_path: Path) -> None:
    flags = ("--port", "0", "--max-restarts", "1", "--retry-wait", "600")
    with BatonProcess(str(fake_folder), *flags, log=tmp_path / "log", program=FAKE) as baton:
        for _ in range(2):
            old = pid_of(baton, "decode-0")
            assert old
            os.kill(old, signal.SIGKILL)
            assert baton.wait_until(
                lambda old=old: pid_of(baton, "decode-0") not in (0, old) or "is given up" in baton.log_text()  # type: ignore[misc]
            )
        said = r"decode-0 was killed by SIGKILL.*; it is given up after 1 restart in a row. No decode worker"
        assert re.search(said, baton.log_text())
        assert baton.wait_until(lambda: [row["id"] for row in baton.workers()] == ["prefill-0"])
        assert baton.wait_until(lambda: baton.metric("supervised_workers", role="decode", state="given up") == 1)
        refused = baton.http.post("/v1/completions", json={"prompt": [1], "max_tokens": 2})
        assert refused.status_code == 503, "it does not wait for a worker that does not come"
        health = baton.http.get("/health").json()["error"]["message"]
        assert health.endswith("; a decode worker is given up after 1 restart in a row"), "as the console says"
        assert len(baton.children()) == 2


def is_caught_starting(baton: BatonProcess, name: str) -> bool:
    """Kills a worker; whether the next one was seen before it served."""
    old, said = pid_of(baton, name), baton.log_text().count("serves again")
    os.kill(old, signal.SIGKILL)
    assert baton.wait_until(lambda: pid_of(baton, name) not in (0, old))
    return baton.log_text().count("serves again") == said


@pytest.mark.parametrize("number", [broad(signal.SIGTERM), signal.SIGKILL])
def test_a_signal_while_something_starts_again_leaves_nothing(
    fake_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with BatonProcess(str(fake_folder), "--port", "0", log=tmp_path / "log", program=FAKE, patient=False) as baton:
        assert any(is_caught_starting(baton, "decode-0") for _ in range(3))
        assert baton.end(number) == (0 if number == signal.SIGTERM else -signal.SIGKILL)


@pytest.mark.broad
def test_parts_started_alone_are_kept_alive_too(tmp_path: Path) -> None:
    """Each command starts its own process again; the gateway where it was, so that the worker finds it."""
    with BatonProcess("gateway", "--port", "0", log=tmp_path / "gateway", patient=False) as gateway:
        control = re.search(r"tcp://[0-9.]+:\d+", gateway.ready)
        assert control is not None
        join = ("worker", "--gateway", control.group(), "--role", "unified", "--worker-id", "u")
        with BatonProcess(*join, "--max-total-tokens", "2048", log=tmp_path / "u") as worker:
            for part, name in ((worker, "u"), (gateway, "gateway")):
                assert gateway.wait_until(lambda: gateway.instance("u") != 0)
                old = pid_of(part, name)
                os.kill(old, signal.SIGKILL)
                assert part.wait_until(lambda old=old, part=part: "serves again" in part.log_text())  # type: ignore[misc]
                assert pid_of(part, name) not in (0, old)
            assert gateway.wait_until(lambda: gateway.instance("u") != 0)
            assert gateway.complete(prompt="Once", max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
