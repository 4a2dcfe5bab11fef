"""Groups of ranks with stand-in processes: what ends, is killed and starts again together."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.console import Console
from deploy.launcher import GRACE_S, Launcher, StartFailed
from deploy.layout import ProcessSpec, rank_fields
from deploy.sentences import Ended
from protocol.messages_gateway import Role
from runtime.process_life import StopSignal
from runtime.settings import WorkerSettings
from tests.deploy.running import PATIENCE_S
from tests.doubles.clock import VirtualClock
from tests.processes import command_line, num_open_files

READY = """echo '{"event": "ready"}' >&$2; """
WAITS = READY + "sleep 1000 & wait"
BROKEN = """echo '{"event": "failed", "error": "rank 1 is gone", "code": "group_broken"}' >&$2; exit 4"""


@pytest.fixture
def launcher(base: Path) -> Iterator[Launcher]:
    with StopSignal() as stop, Launcher(Console(with_logs=False), stop, VirtualClock()) as opened:
        yield opened
    assert list(base.iterdir()) == []


def group(*scripts: str) -> list[ProcessSpec]:
    """A group with one script for each rank. A script finds the settings in $0 and its status pipe in $2."""
    settings = [
        WorkerSettings(role=Role.DECODE, gateway="", model="m", **fields) for fields in rank_fields("d", len(scripts))
    ]
    return [
        ProcessSpec(worker.worker_id, ("bash", "-c", script, worker.to_json()), {}, group="d")
        for worker, script in zip(settings, scripts, strict=True)
    ]


def settings_of(process: psutil.Process) -> WorkerSettings:
    return WorkerSettings.from_json(next(word for word in command_line(process) if word.startswith("{")))


def end_of(launcher: Launcher) -> Ended:
    while not (ends := launcher.turn(PATIENCE_S)):
        pass
    (ended,) = ends
    return ended


def test_when_one_has_ended_the_others_are_killed_at_once(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher.start(group(WAITS, WAITS, WAITS))
    pids = [child.popen.pid for child in launcher.children.values()]
    kill, killed = os.killpg, []

    def killpg(pid: int, number: int) -> None:
        killed.append(pid)
        kill(pid, number)

    monkeypatch.setattr(os, "killpg", killpg)
    os.kill(pids[1], signal.SIGTERM)
    os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)
    launcher.turn(0.0)
    assert killed == pids


def test_the_others_of_a_group_are_killed_and_its_end_is_told_once(launcher: Launcher, base: Path) -> None:
    launcher.start(group(WAITS, WAITS, WAITS))
    processes = [psutil.Process(child.popen.pid) for child in launcher.children.values()]
    everything = processes + [below for process in processes for below in process.children()]
    (folder,) = (path for root in base.iterdir() for path in root.iterdir())
    launcher.children["d.1"].popen.terminate()
    assert end_of(launcher) == Ended("d.1", -signal.SIGTERM, "")
    assert psutil.wait_procs(everything, PATIENCE_S)[1] == []
    assert not folder.exists()
    assert launcher.turn(0.0) == []


def test_who_only_says_that_the_group_is_broken_did_not_end_it(launcher: Launcher, base: Path) -> None:
    """They notice each other's end, and the launcher may see all ends at once."""
    go = base / "go"
    os.mkfifo(go)
    launcher.start(group(READY + f"read < {go}; {BROKEN}", READY + "sleep 1000", READY + "sleep 1000"))
    pids = [launcher.children[name].popen.pid for name in ("d.0", "d.2")]
    go.write_text("now\n")
    os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
    os.kill(pids[1], signal.SIGSEGV)
    os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)
    go.unlink()
    assert end_of(launcher) == Ended("d.2", -signal.SIGSEGV, "")


def test_of_those_who_say_that_the_group_is_broken_the_first_is_named(launcher: Launcher, base: Path) -> None:
    """The others only say that it has gone. The launcher may see all ends at once."""
    fails = """echo '{"event": "failed", "error": "%s", "code": "group_broken", "at": %d}' >&$2; exit 4"""
    errors = {base / "go0": fails % ("rank 1 has gone", 8), base / "go1": fails % ("step 7 has failed", 7)}
    for go in errors:
        os.mkfifo(go)
    launcher.start(group(*(READY + f"read < {go}; {script}" for go, script in errors.items())))
    children = [launcher.children[name] for name in ("d.0", "d.1")]
    for go, child in zip(errors, children, strict=True):
        go.write_text("now\n")
        os.waitid(os.P_PID, child.popen.pid, os.WEXITED | os.WNOWAIT)
        go.unlink()
    assert end_of(launcher) == Ended("d.1", 4, "", "step 7 has failed", "group_broken")


BREAKS = """echo '{"event": "failed", "error": "rank 1 has been silent", "code": "group_broken"}' >&$2; exit 4"""
TELLS = """echo '{"event": "alive", "paused_s": 2.5, "at": %g}' >&$2; """


def test_a_rank_that_is_stopped_when_the_others_give_up_was_paused(launcher: Launcher, base: Path) -> None:
    """It is killed before it could say so."""
    go = base / "go"
    os.mkfifo(go)
    launcher.start(group(READY + f"read < {go}; {BREAKS}", WAITS, WAITS))
    stopped = psutil.Process(launcher.children["d.1"].popen.pid)
    stopped.suspend()
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    assert launcher.children["d.1"].is_stopped() and not launcher.children["d.2"].is_stopped()
    go.write_text("now\n")
    go.unlink()
    assert end_of(launcher) == Ended("d.0", 4, "", "rank 1 has been silent", "group_broken", paused=("d.1",))
    assert not launcher.children["d.1"].is_stopped()


@pytest.mark.parametrize("at, paused", [(-5.1, ()), (-4.9, ("d.1",)), (4.9, ("d.1",)), (5.1, ())])
def test_a_pause_that_a_rank_tells_is_the_reason_if_it_was_just_then(
    launcher: Launcher, base: Path, at: float, paused: tuple[str, ...]
) -> None:
    """Also when it wakes after the others have given up, and before it is killed."""
    go, failed_at = base / "go", 1000.0
    os.mkfifo(go)
    breaks = BREAKS.replace("}", f', "at": {failed_at:g}}}')
    launcher.start(group(READY + f"read < {go}; {breaks}", TELLS % (failed_at + at) + WAITS))
    go.write_text("now\n")
    go.unlink()
    assert end_of(launcher).paused == paused


def test_the_pause_of_another_unit_is_no_reason(launcher: Launcher, base: Path) -> None:
    go = base / "go"
    os.mkfifo(go)
    other = ProcessSpec("e", ("bash", "-c", READY + "sleep 1000 & wait", "{}"), {})
    launcher.start([*group(READY + f"read < {go}; {BREAKS}", WAITS), other])
    stopped = psutil.Process(launcher.children["e"].popen.pid)
    stopped.suspend()
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    go.write_text("now\n")
    go.unlink()
    assert end_of(launcher).paused == ()
    stopped.resume()  # or it does not hear that it is told to end


LEAVES = "trap 'exit 0' TERM; " + READY + "sleep 1000 & wait"


def test_when_one_has_left_the_others_have_a_moment_to_leave_too(launcher: Launcher, base: Path) -> None:
    go = base / "go"
    os.mkfifo(go)
    launcher.start(group(LEAVES, READY + f"read < {go}; exit 0"))
    first, second = (launcher.children[name].popen for name in ("d.0", "d.1"))
    first.terminate()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    assert launcher.turn(0.0) == []
    go.write_text("now\n")
    go.unlink()
    assert end_of(launcher) == Ended("d.0", 0, "")
    assert second.returncode == 0


def test_what_does_not_leave_with_its_group_is_killed(base: Path) -> None:
    clock = VirtualClock()
    with StopSignal() as stop, Launcher(Console(with_logs=False), stop, clock) as launcher:
        launcher.start(group(WAITS, LEAVES))
        stays, leaves = (launcher.children[name].popen for name in ("d.0", "d.1"))
        leaves.terminate()
        os.waitid(os.P_PID, leaves.pid, os.WEXITED | os.WNOWAIT)
        launcher.turn(0.0)
        clock.advance(GRACE_S - 0.1)
        assert launcher.turn(0.0) == [] and stays.poll() is None
        clock.advance(0.2)
        assert launcher.turn(0.0) == [], "it has just been killed"
        assert end_of(launcher) == Ended("d.1", 0, ""), "it has left, and is not started again"
        assert stays.returncode == -signal.SIGKILL


def test_a_rank_that_is_killed_for_its_silence_is_named(launcher: Launcher) -> None:
    launcher.start(group(WAITS, WAITS))
    launcher.kill("d.1", "gave no sign of life for 11 s")
    ended = end_of(launcher)
    assert (ended.name, ended.killed_because) == ("d.1", "gave no sign of life for 11 s")


def test_each_start_has_its_epoch_and_its_folder_and_keeps_no_descriptor(launcher: Launcher) -> None:
    specs, seen, num_open = group(WAITS, WAITS, WAITS), set(), set()
    launcher.start(specs)
    for epoch in range(1, 6):
        num_open.add(num_open_files())
        all_settings = [settings_of(psutil.Process(launcher.children[spec.name].popen.pid)) for spec in specs]
        assert [
            (settings.group, settings.group_rank, settings.group_size, settings.group_epoch)
            for settings in all_settings
        ] == [("d", rank, 3, epoch) for rank in range(3)]
        (folder,) = {settings.group_folder for settings in all_settings}
        assert Path(folder).is_dir() and folder not in seen
        seen.add(folder)
        launcher.kill("d.0", "is in the way")
        end_of(launcher)
        assert not Path(folder).exists()
        launcher.start_again(specs, epoch + 1)
    assert len(num_open) == 1


def test_a_later_command_has_later_epochs(base: Path) -> None:
    console, clock = Console(with_logs=False), VirtualClock()
    with StopSignal() as stop, Launcher(console, stop, clock, epochs_after=500) as launcher:
        launcher.start(group(WAITS, WAITS))
        settings = settings_of(psutil.Process(launcher.children["d.1"].popen.pid))
        assert settings.group_epoch == 501
    assert list(base.iterdir()) == []


@pytest.mark.parametrize(
    "script, says",
    [
        ("exit 3", "d.1 ended while starting (exit status 3)"),
        ("""echo '{"event": "failed", "error": "another model"}' >&$2; exit 2""", "d.1 cannot start: another model"),
        ("kill -9 $$", "d.1 ended while starting (killed by SIGKILL)"),
    ],
)
def test_a_rank_that_cannot_start_is_one_sentence_and_nothing_is_left(base: Path, script: str, says: str) -> None:
    with StopSignal() as stop, Launcher(Console(with_logs=False), stop, VirtualClock()) as launcher:
        with pytest.raises(StartFailed) as caught:
            launcher.start(group(WAITS, script, "sleep 1000"))
        assert caught.value.message == says
    assert list(base.iterdir()) == []


def test_a_rank_that_the_system_cannot_start_takes_the_others_with_it(launcher: Launcher, base: Path) -> None:
    """At the first start and at a later one, which is tried again."""
    first, second = group(WAITS, WAITS)
    missing = ProcessSpec("d.1", (str(base / "none"), first.command[-1]), {}, group="d")
    before = psutil.Process().children()
    with pytest.raises(StartFailed, match=r"^d cannot be started: .*No such file"):
        launcher.start([first, missing])
    assert psutil.Process().children() == before and [list(root.iterdir()) for root in base.iterdir()] == [[]]
    launcher.start([first, second])
    launcher.kill("d.0", "is in the way")
    end_of(launcher)
    with pytest.raises(FileNotFoundError):
        launcher.start_again([first, missing], num_starts=2)
    assert psutil.Process().children() == before and [list(root.iterdir()) for root in base.iterdir()] == [[]]
    launcher.start_again([first, second], num_starts=3)
    assert len(psutil.Process().children()) == len(before) + 2
