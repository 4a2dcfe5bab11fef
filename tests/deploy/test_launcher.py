"""The launcher with stand-in processes: real processes, pipes and signals, no model."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.console import Console
from deploy.launcher import Launcher, StartFailed
from deploy.layout import GATEWAY, ProcessSpec
from deploy.sentences import Ended
from runtime.process_life import StopSignal
from tests.deploy.running import PATIENCE_S, Starter, child_named, exit_fds, starting, wait_all_gone
from tests.doubles.clock import VirtualClock
from tests.processes import command_line


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Starter]:
    with starting(tmp_path) as starter:
        yield starter


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    """One in this very process."""
    with StopSignal() as stop, Launcher(Console(with_logs=False), stop, VirtualClock()) as opened:
        yield opened


def shell(script: str) -> ProcessSpec:
    """`script` finds the descriptor of its status pipe in $1."""
    return ProcessSpec("x", ("bash", "-c", script), {})


def end_of(launcher: Launcher) -> Ended:
    while not (ends := launcher.turn(PATIENCE_S)):
        pass
    return ends[0]


READY = """echo '{"event": "ready"}' >&$1; """


def test_restarts_keep_no_descriptor(launcher: Launcher) -> None:
    spec = shell(READY + "sleep 1000 & wait")
    launcher.start([spec])
    counts = set()
    gc.collect()  # what earlier tests have left unreachable is closed now, not in the loop
    for _ in range(100):
        launcher.kill("x", "is in the way")
        assert end_of(launcher).code == -signal.SIGKILL
        launcher.start_again([spec], num_starts=2)
        counts.add(len(os.listdir("/proc/self/fd")))
    assert len(counts) == 1


def test_what_a_process_has_started_ends_with_it(launcher: Launcher, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    launcher.start([shell(f"sleep 1000 & echo $!; {READY} read < {go}; exit 3")])
    process = next(child for child in psutil.Process().children() if str(go) in " ".join(command_line(child)))
    left = process.children()
    go.write_text("now\n")
    ended = end_of(launcher)
    assert (ended.code, ended.last_line) == (3, str(left[0].pid))
    assert psutil.wait_procs(left, PATIENCE_S)[1] == []


def test_another_start_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that was said, heard or done of a process is believed of the one in its place."""
    clock = VirtualClock()
    with StopSignal() as stop, Launcher(Console(with_logs=False), stop, clock) as launcher:
        said = """echo '{"event": "alive"}' >&$1; echo '{"event": "failed", "error": "why", "code": "c"}' >&$1; """
        launcher.start([shell(said + READY + "sleep 1000")])
        child = launcher.children["x"]
        assert child.ready and child.is_beating and child.heard_at == clock.now()
        clock.advance(100.0)
        launcher.kill("x", "is in the way")
        code = -signal.SIGKILL
        assert end_of(launcher) == Ended("x", code, "", "why", "c", was_ready=True, killed_because="is in the way")
        capsys.readouterr()
        launcher.start_again([shell("""echo '{"event": "loading", "what": "weights"}' >&$1; exit 7""")], num_starts=2)
        child = launcher.children["x"]
        assert not child.ready and not child.is_beating
        assert child.heard_at == clock.now()
        assert end_of(launcher) == Ended("x", 7, "", was_ready=False)
        assert capsys.readouterr().err == ""


class HurriedClock(VirtualClock):
    """Ten seconds pass at each look, once it `hurries`."""

    hurries = False

    def now(self) -> float:
        self.advance(10.0 if self.hurries else 0.0)
        return super().now()


def test_a_silent_start_fails_though_another_process_beats() -> None:
    clock = HurriedClock()
    with StopSignal() as stop, Launcher(Console(with_logs=False), stop, clock) as launcher:
        launcher.start([ProcessSpec("beats", ("bash", "-c", READY + """yes '{"event": "alive"}' >&$1"""), {})])
        clock.hurries = True
        with pytest.raises(StartFailed, match=r"^x: no progress for 600 s while starting$"):
            launcher.start([shell("sleep 1000")])


def test_the_last_words_are_heard_however_much_came_before(launcher: Launcher, tmp_path: Path) -> None:
    """Written into a large pipe by a process that has ended when the first piece is read; its last line has no end."""
    script = (
        "import fcntl, os; fcntl.fcntl(2, fcntl.F_SETPIPE_SZ, 1 << 20);"
        "os.write(2, b'x' * 65535 + b'\\n' + b'y' * 65536 + b'\\nI am dying');"
    )
    go = tmp_path / "go"
    os.mkfifo(go)
    launcher.start([shell(READY + f'read < {go}; exec {sys.executable} -c "{script}"')])
    go.write_text("now\n")
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert end_of(launcher).last_line == "I am dying"


def test_what_the_system_cannot_start_is_one_sentence(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"^x cannot be started: .*No such file"):
        launcher.start([ProcessSpec("x", (str(tmp_path / "none"),), {})])


def test_everything_starts_and_ctrl_c_ends_it(serve: Starter) -> None:
    running = serve("worker", "worker")
    ready, curl = running.ready_lines()
    assert ready.startswith("Ready: story at http://127.0.0.1:54321 with 1 prefill worker + 1 decode worker")
    assert curl.startswith("curl -N -s http://127.0.0.1:54321/v1/completions ")
    children = running.children()
    gone = exit_fds(children)
    assert len(children) == 3
    assert {os.getpgid(child.pid) for child in children} == {child.pid for child in children}
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0
    assert wait_all_gone(gone)
    errors = running.stderr()
    assert "baton: decode-0: loading weights" in errors
    assert "info prefill-0 registered gateway=tcp://127.0.0.1:40123 threads=1" in errors
    assert "info decode-0 leaving" in errors


@pytest.mark.slow
def test_killing_the_launcher_leaves_no_process(serve: Starter) -> None:
    running = serve("worker", "ignores_stop")
    running.ready_lines()
    gone = exit_fds(running.children())
    assert len(gone) == 3
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    assert wait_all_gone(gone)


@pytest.mark.slow
def test_a_model_that_cannot_be_served_ends_all_with_status_2(serve: Starter) -> None:
    running = serve("worker", "refuses_model")
    assert running.end() == 2
    last = running.stderr().splitlines()[-1]
    assert last == "baton: error: decode-0 cannot start: /models/story: quantised weights are not supported"


@pytest.mark.slow
def test_a_worker_that_crashes_at_start_ends_all_with_status_1(serve: Starter) -> None:
    running = serve("crashes", "worker")
    assert running.end() == 1
    errors = running.stderr()
    assert "prefill-0 | Traceback (most recent call last):" in errors
    last = "prefill-0 ended while starting (exit status 1); its last line: RuntimeError: prefill-0 broke"
    assert errors.splitlines()[-1] == f"baton: error: {last}"


@pytest.mark.slow
def test_a_worker_that_is_given_up_is_reported_and_the_rest_stays(serve: Starter) -> None:
    running = serve("worker", "worker", "0")
    running.ready_lines()
    victim = child_named(running, "decode-0")
    gone = exit_fds([victim])
    victim.kill()
    assert wait_all_gone(gone)
    running.wait_for(
        "Z error baton decode-0 was killed by SIGKILL; it is not started again (--max-restarts 0). "
        "No decode worker of this command is left: "
    )
    assert len([child for child in running.children() if child.pid != victim.pid]) == 2
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0


@pytest.mark.slow
def test_sigterm_while_a_restart_is_waited_for_ends_all(serve: Starter) -> None:
    running = serve("worker", "worker_once")
    running.ready_lines()
    gone = exit_fds(running.children())
    child_named(running, "decode-0").kill()
    running.wait_for("it is started again in 2 s")
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0
    assert wait_all_gone(gone)
    assert "info baton stopping" in running.stderr().partition("it is started again in 2 s")[2]


@pytest.mark.slow
def test_a_gateway_that_is_given_up_takes_the_rest_with_it(serve: Starter) -> None:
    running = serve("worker", "worker", "0")
    running.ready_lines()
    gone = exit_fds(running.children())
    child_named(running, "served_model_name").kill()
    assert running.end() == 1
    assert wait_all_gone(gone)
    assert (
        "Z error baton gateway was killed by SIGKILL; it is not started again (--max-restarts 0). Everything stops"
        in running.stderr()
    )


@pytest.mark.slow
def test_a_second_ctrl_c_kills_what_ignores_the_first(serve: Starter) -> None:
    running = serve("worker", "ignores_stop")
    running.ready_lines()
    gone = exit_fds(running.children())
    prefill = exit_fds([child_named(running, "prefill-0")])
    running.process.send_signal(signal.SIGINT)
    assert wait_all_gone(prefill)  # the first signal is being acted upon
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0
    assert wait_all_gone(gone)
    assert "decode-0 did not end within its grace and is killed" in running.stderr()


LEAVING = """echo '{"event": "leaving", "requests": 3, "bound_s": 100000}' >&$1; """


class Bench:
    """A launcher, and what a test starts with it. A script finds the descriptor of its status pipe in $1."""

    def __init__(self, launcher: Launcher, clock: HurriedClock) -> None:
        self.launcher, self.clock = launcher, clock

    def start(self, **scripts: str) -> None:
        self.launcher.start([ProcessSpec(name, ("bash", "-c", script), {}) for name, script in scripts.items()])
        self.popens = {name: self.launcher.children[name].popen for name in scripts}

    def statuses(self) -> dict[str, int]:
        return {name: popen.returncode for name, popen in self.popens.items()}


@pytest.fixture
def bench() -> Iterator[Bench]:
    clock = HurriedClock()
    with StopSignal() as stop, Launcher(Console(with_logs=False), stop, clock) as launcher:
        yield Bench(launcher, clock)


def on_term(what: str, before: str = READY) -> str:
    """A script that runs until SIGTERM, and then does `what`."""
    return f"trap '{what}' TERM; {before} while :; do sleep 0.02; done"


def test_the_gateway_ends_before_the_workers_are_told_to(bench: Bench, tmp_path: Path) -> None:
    over, in_order = tmp_path / "over", tmp_path / "in-order"
    bench.start(
        worker=on_term(f"[ -e {over} ] && touch {in_order}; exit 0"),
        **{GATEWAY: on_term(f"sleep 0.3; touch {over}; exit 0")},
    )
    bench.launcher.stop()
    assert in_order.exists() and bench.statuses() == {"worker": 0, GATEWAY: 0}


def test_who_has_said_how_long_it_takes_has_that_time(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.start(x=on_term("sleep 0.3; exit 0", READY + LEAVING))
    while not bench.launcher.children["x"].leaves_until:
        bench.launcher.turn(PATIENCE_S)
    bench.clock.hurries = True
    bench.launcher.stop()
    assert bench.statuses() == {"x": 0}
    assert capsys.readouterr().err.splitlines()[-1] == (
        "baton: x: 3 requests run; ending in at most 100000 s; again to end now"
    )


def test_who_says_nothing_is_killed_after_its_grace(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.start(x=on_term(""))
    bench.clock.hurries = True
    bench.launcher.stop()
    assert bench.statuses() == {"x": -signal.SIGKILL}
    assert "x did not end within its grace and is killed" in capsys.readouterr().err


def test_a_further_signal_reaches_all_of_them(bench: Bench) -> None:
    """At the first one the gateway leaves, and this command gets another."""
    told_twice = "n=$((n + 1)); [ $n = 2 ] && exit 0"
    bench.start(worker=on_term(told_twice), **{GATEWAY: on_term(f"{told_twice}; kill -TERM $PPID")})
    bench.launcher.stop()
    assert bench.statuses() == {"worker": 0, GATEWAY: 0}
