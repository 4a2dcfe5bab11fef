import gc
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.process_life import (
    LAUNCHER_PID,
    StatusPipe,
    StopSignal,
    die_with_parent,
    quick_imports,
    thread_environment,
)
from tests.processes import python_path

PROJECT = Path(__file__).resolve().parents[2]


def test_started_by_hand_nothing_is_tied_to_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LAUNCHER_PID, raising=False)
    assert die_with_parent() is False


def test_a_parent_that_is_gone_already_ends_the_process() -> None:
    environment = {**os.environ, LAUNCHER_PID: "1", "PYTHONPATH": python_path(PROJECT)}
    program = "from runtime.process_life import die_with_parent; die_with_parent(); print('alive')"
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b""


@pytest.mark.parametrize("module", ["gateway", "deploy.worker"])
def test_a_process_ends_with_its_parent_while_it_still_imports(module: str) -> None:
    environment = {**os.environ, LAUNCHER_PID: "1", "PYTHONPATH": python_path(PROJECT)}
    argv = [sys.executable, "-X", "importtime", "-P", "-m", module, "--settings", "{}"]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    imported = [line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()]
    assert "runtime.process_life" in imported
    assert not {"protocol.errors", "uvloop", "torch", "zmq"} & set(imported)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_what_is_imported_is_never_looked_at_for_garbage(was_enabled: bool) -> None:
    gc.collect()  # what earlier tests have left would be kept, too
    if not was_enabled:
        gc.disable()
    try:
        with quick_imports():
            assert not gc.isenabled()
            made: list[list[int]] = [[]]
        assert gc.isenabled() == was_enabled
        assert gc.is_tracked(made) and not any(each is made for each in gc.get_objects())
    finally:
        gc.enable()


def test_an_import_that_fails_leaves_the_garbage_collector_on() -> None:
    gc.collect()
    with pytest.raises(ImportError), quick_imports():
        raise ImportError
    assert gc.isenabled()


def test_threads_are_bounded_and_do_not_spin() -> None:
    environment = thread_environment(3)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize(
    "tuned, expected",
    [(None, ""), ("", ""), ("glibc.rtld.optional_static_tls=4096", ":glibc.rtld.optional_static_tls=4096")],
)
def test_what_the_user_has_tuned_of_the_c_library_stays(
    tuned: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if tuned is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", tuned)
    assert thread_environment(1)["GLIBC_TUNABLES"] == f"glibc.malloc.hugetlb=1{expected}"


def test_a_signal_sets_the_flag_and_wakes_a_poller() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert not stop.is_set() and select.select([stop.fd], [], [], 0.0)[0] == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert select.select([stop.fd], [], [], 5.0)[0] == [stop.fd] and stop.is_set()
        assert stop.received is signal.SIGTERM
        assert os.read(stop.fd, 8) != b""
        os.kill(os.getpid(), signal.SIGINT)
        stop.clear_wakeup()
        assert stop.received is signal.SIGTERM
        assert stop.count == 2
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("character", ["a", "\x00", "\U0001f600", "\udcff", '"', "\n"])
def test_a_long_reason_fits_into_one_event_whatever_it_is_made_of(character: str) -> None:
    read_fd, write_fd = os.pipe()
    status = StatusPipe(write_fd)
    status.failed(character * 10_000)
    status.close()
    with os.fdopen(read_fd, encoding="utf-8") as pipe:
        [event] = [json.loads(line) for line in pipe]
    assert event["event"] == "failed" and len(event["error"]) == 500


def test_status_events_are_json_lines() -> None:
    read_fd, write_fd = os.pipe()
    status = StatusPipe(write_fd)
    status.loading("weights", done=1, total=2)
    status.ready(kv_pages=7)
    status.failed("no\nluck")
    status.close()
    with os.fdopen(read_fd) as pipe:
        events = [json.loads(line) for line in pipe]
    assert events == [
        {"event": "loading", "what": "weights", "done": 1, "total": 2},
        {"event": "ready", "kv_pages": 7},
        {"event": "failed", "error": "no\nluck"},
    ]


def test_a_launcher_that_is_gone_is_no_error() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    status = StatusPipe(write_fd)
    status.ready()
    status.ready()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(write_fd)


def test_without_a_descriptor_nothing_happens() -> None:
    status = StatusPipe()
    status.ready()
    status.close()
    assert status._fd is None


def test_a_sign_of_life_is_said_once_a_second_and_never_waits() -> None:
    read_fd, write_fd = os.pipe()
    pipe = StatusPipe(write_fd)
    for tenth in range(25):
        pipe.alive(100.0 + tenth / 10)
    assert os.read(read_fd, 4096).splitlines() == [b'{"event": "alive"}'] * 3
    for second in range(10_000):  # far more than the pipe holds, and nobody reads
        pipe.alive(200.0 + second)
    assert len(os.read(read_fd, 1 << 20)) > 4096
    pipe.close()
    os.close(read_fd)


def test_a_pause_is_told_at_once_with_its_length_and_its_end() -> None:
    """A turn that comes as late as a sign of life may is no pause."""
    read_fd, write_fd = os.pipe()
    pipe = StatusPipe(write_fd)
    for at in (100.0, 100.25, 101.25, 103.5, 103.75, 104.4, 104.6):
        pipe.alive(at)
    pipe.close()
    with os.fdopen(read_fd) as told:
        events = [json.loads(line) for line in told]
    alive = {"event": "alive"}
    assert events == [alive, alive, {**alive, "paused_s": 2.25, "at": 103.5}, alive]
