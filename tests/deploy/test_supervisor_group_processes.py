"""`baton serve` with a decode worker of three ranks: real processes and signals, no model."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runtime.settings import WorkerSettings
from tests.deploy.running import Serve, Starter, exit_fds, starting, wait_all_gone
from tests.processes import command_line

pytestmark = pytest.mark.slow


def settings_of(process: psutil.Process) -> WorkerSettings:
    return WorkerSettings.from_json(next(word for word in command_line(process) if word.startswith("{")))


@pytest.fixture
def serve(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    """Commands whose decode worker has three ranks."""
    monkeypatch.setenv("DRIVE_RANKS", "3")
    with starting(tmp_path) as starter:
        yield starter


def ranks(running: Serve) -> dict[int, psutil.Process]:
    of_group = [child for child in running.children() if '"group": "decode-0"' in " ".join(command_line(child))]
    return {settings_of(child).group_rank: child for child in of_group}


def test_one_rank_is_killed_and_all_start_again(serve: Starter, base: Path) -> None:
    running = serve("worker", "worker")
    assert " with 1 prefill worker + 1 decode worker of 3 ranks, in " in running.ready_lines()[0]
    before = ranks(running)
    others = {child.pid for child in running.children()} - {child.pid for child in before.values()}
    gone = exit_fds(list(before.values()))
    first = {settings_of(child).group_folder for child in before.values()}
    (epoch,) = {settings_of(child).group_epoch for child in before.values()}
    before[1].kill()
    assert wait_all_gone(gone)
    running.wait_for("info baton decode-0 serves again after ")
    after = ranks(running)
    assert sorted(before) == sorted(after) == [0, 1, 2]
    assert not {child.pid for child in before.values()} & {child.pid for child in after.values()}
    assert others <= {child.pid for child in running.children()}
    assert {settings_of(child).group_epoch for child in after.values()} == {epoch + 1}
    folders = {settings_of(child).group_folder for child in after.values()}
    assert len(first) == len(folders) == 1 and [path for root in base.iterdir() for path in root.iterdir()] == [
        Path(folder) for folder in folders - first
    ]
    ends = [line for line in running.stderr().splitlines() if " error baton " in line]
    assert [line.partition(" error baton ")[2] for line in ends] == [
        "decode-0.1 was killed by SIGKILL; group decode-0 of 3 ranks is started again at once"
    ]
    gone = exit_fds(running.children())
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0
    assert wait_all_gone(gone)
    assert list(base.iterdir()) == []


def test_a_group_that_is_given_up_is_reported_and_the_rest_stays(serve: Starter) -> None:
    running = serve("worker", "worker", "0")
    running.ready_lines()
    victims = ranks(running)
    gone = exit_fds(list(victims.values()))
    victims[2].kill()
    assert wait_all_gone(gone)
    running.wait_for("group decode-0 of 3 ranks is not started again (--max-restarts 0). No decode worker of this")
    assert " --dp-size 3 --enable-dp-attention --workers-on-host 4" in running.stderr()
    assert ranks(running) == {} and len(running.children()) == 2


def test_a_launcher_that_is_killed_leaves_a_folder_until_the_next_one(serve: Starter, base: Path) -> None:
    running = serve("worker", "ignores_stop")
    running.ready_lines()
    gone = exit_fds(running.children())
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    assert wait_all_gone(gone)
    left = list(base.iterdir())
    assert len(left) == 1
    again = serve("worker", "worker")
    again.ready_lines()
    assert left[0] not in base.iterdir()
    again.process.send_signal(signal.SIGINT)
    assert again.end() == 0
    assert list(base.iterdir()) == []
