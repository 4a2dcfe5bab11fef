"""A holder with processes that are no worker: real processes, signals and threads, no Ray and no model."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.launcher import Launcher
from deploy.layout import ProcessSpec
from deploy.options import Rules
from deploy.ray.holder import Errand, Holder, HolderState, NotServing, Overtaken, limited
from deploy.supervisor import Supervisor
from tests.deploy.running import PATIENCE_S, exit_fds, wait_all_gone
from tests.processes import python_path

PROJECT = Path(__file__).resolve().parents[3]
READY = """echo '{"event": "ready", "kv_pages": 7}' >&$1; """
WAITS = READY + "exec sleep 1000"
TRAPS = "trap 'echo gone > MARK; exit 0' TERM; " + READY + "sleep 1000 & wait"


def shell(script: str) -> ProcessSpec:
    """`script` finds the descriptor of its status pipe in $1."""
    return ProcessSpec("x", ("bash", "-c", script), {})


def errand(script: str, again: str = "", **rules: float) -> Errand:
    return Errand([shell(script)], Rules(**rules), lambda _ready: [shell(again or script)])  # type: ignore[arg-type]


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder(grace_s=PATIENCE_S)
    yield made
    made.leave().result(PATIENCE_S)


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def await_state(holder: Holder, *states: HolderState) -> None:
    """A state has no event: looks again whenever a moment has passed."""
    await_change(lambda: holder.state in states)


def await_change(seen: Callable[[], bool]) -> None:
    pause = subprocess.Popen(["sleep", str(PATIENCE_S)])
    try:
        while not seen():
            with pytest.raises(subprocess.TimeoutExpired):
                pause.wait(0.02)
    finally:
        pause.kill()
        pause.wait()


def test_it_serves_and_leaves_no_process(holder: Holder) -> None:
    before = set(children())
    assert holder.state is HolderState.WAITING
    assert holder.start(errand(WAITS)).result(PATIENCE_S)["x"]["kv_pages"] == 7
    await_state(holder, HolderState.SERVING)
    holder.check()
    ends = exit_fds(list(set(children()) - before))
    assert ends
    holder.leave().result(PATIENCE_S)
    assert wait_all_gone(ends) and holder.state is HolderState.GONE


def test_a_process_that_ends_is_started_again_with_what_it_had(holder: Holder, tmp_path: Path) -> None:
    mark = tmp_path / "again"
    before = set(children())
    holder.start(errand(WAITS, f"echo x > {mark}; {WAITS}")).result(PATIENCE_S)
    (child,) = set(children()) - before
    child.send_signal(signal.SIGKILL)
    await_change(lambda: mark.exists() or holder.state is HolderState.GIVEN_UP)
    await_state(holder, HolderState.SERVING, HolderState.GIVEN_UP)
    holder.check()
    assert set(children()) - before != {child}


def test_another_errand_ends_the_one_before(holder: Holder, tmp_path: Path) -> None:
    mark = tmp_path / "left"
    holder.start(errand(TRAPS.replace("MARK", str(mark)))).result(PATIENCE_S)
    assert holder.start(errand(WAITS)).result(PATIENCE_S)
    assert mark.read_text() == "gone\n"


def test_an_errand_that_does_not_serve_yet_is_overtaken(holder: Holder) -> None:
    first = holder.start(errand("exec sleep 1000"))
    await_state(holder, HolderState.STARTING)
    second = holder.start(errand(WAITS))
    with pytest.raises(Overtaken):
        first.result(PATIENCE_S)
    assert second.result(PATIENCE_S)


def test_many_errands_at_once_leave_the_last_one(holder: Holder) -> None:
    before = set(children())
    with ThreadPoolExecutor(4) as pool:
        futures = list(pool.map(lambda _: holder.start(errand(WAITS)), range(8)))
    last = holder.start(errand(WAITS))
    assert last.result(PATIENCE_S)
    assert all(future.done() for future in futures)
    assert len(set(children()) - before) == 1


def test_a_start_that_fails_is_told_and_another_one_may_come(holder: Holder) -> None:
    fails = """echo '{"event": "failed", "error": "no such model", "code": "x"}' >&$1; exit 2"""
    with pytest.raises(NotServing, match="x cannot start: no such model"):
        holder.start(errand(fails)).result(PATIENCE_S)
    with pytest.raises(NotServing, match="no such model"):
        holder.check()
    assert holder.start(errand(WAITS)).result(PATIENCE_S)
    holder.check()


def test_what_ends_too_often_is_given_up(holder: Holder) -> None:
    before = set(children())
    holder.start(errand(WAITS, "exit 5", max_restarts=1)).result(PATIENCE_S)
    (child,) = set(children()) - before
    child.send_signal(signal.SIGKILL)
    await_state(holder, HolderState.GIVEN_UP)
    with pytest.raises(NotServing, match="x ended with exit status 5; it is given up after 1 restart in a row"):
        holder.check()


def test_without_a_limit_a_replica_has_one_because_serve_replaces_it(holder: Holder) -> None:
    assert limited(Rules()) == Rules(max_restarts=5)
    assert [limited(Rules(max_restarts=most)).max_restarts for most in (0, 3, 1000000)] == [0, 3, 1000000]
    unlimited = Supervisor.__init__
    seen = list[Rules]()

    def note(self: Supervisor, launcher: Launcher, specs: Sequence[ProcessSpec], rules: Rules, *rest: Any) -> None:
        seen.append(rules)
        unlimited(self, launcher, specs, rules, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervisor, "__init__", note)
        holder.start(errand(WAITS)).result(PATIENCE_S)
        await_state(holder, HolderState.SERVING)
    assert seen == [Rules(max_restarts=5)]


def test_leaving_waits_no_longer_than_its_grace() -> None:
    deaf = Holder(grace_s=0.1)
    before = set(children())
    deaf.start(errand("trap '' TERM; " + READY + "while :; do sleep 1000; done")).result(PATIENCE_S)
    ends = exit_fds(list(set(children()) - before))
    deaf.leave().result(PATIENCE_S)
    assert ends and wait_all_gone(ends)


def test_what_somebody_else_has_told_to_end_is_given_up(holder: Holder) -> None:
    """The supervisor does not start it again, so Serve must replace the replica."""
    before = set(psutil.Process().children())
    holder.start(errand("trap 'exit 0' TERM; " + READY + "sleep 1000 & wait")).result(PATIENCE_S)
    (child,) = set(psutil.Process().children()) - before
    child.send_signal(signal.SIGTERM)
    await_state(holder, HolderState.GIVEN_UP)
    with pytest.raises(NotServing, match="x was told to end, not by its holder"):
        holder.check()


def test_leaving_before_any_errand() -> None:
    holder = Holder(grace_s=1)
    holder.leave().result(PATIENCE_S)
    assert holder.state is HolderState.GONE


KILLED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from deploy.layout import ProcessSpec
from deploy.options import Rules
from deploy.ray.holder import Errand, Holder
stand_in, settings = sys.argv[1:]
spec = ProcessSpec("w", (sys.executable, stand_in, "worker", "--settings", settings), {"OMP_NUM_THREADS": "1"})
def start():
    return Holder(grace_s=1).start(Errand([spec], Rules(), lambda ready: [spec])).result()
with ThreadPoolExecutor(1) as pool:  # a thread that ends before the process does
    pool.submit(start).result()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_holder_that_is_killed_takes_its_process_along() -> None:
    """Also one that a passing thread has asked for its process, as Serve does."""
    stand_in = str(Path(__file__).parents[1] / "stand_in.py")
    settings = '{"model": "/m", "role": "decode", "worker_id": "w", "gateway": "tcp://127.0.0.1:1"}'
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, stand_in, settings],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        env={**os.environ, "PYTHONPATH": python_path(PROJECT)},
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        ends = exit_fds(psutil.Process(process.pid).children(recursive=True))
        assert len(ends) == 1
    finally:
        process.kill()
        process.communicate()
    assert wait_all_gone(ends)
