"""In which order processes are told to end, and how long each may take: real processes, in time of our own."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.console import Console
from deploy.launcher import Launcher
from deploy.layout import GATEWAY, ProcessSpec
from runtime.process_life import StopSignal
from tests.deploy.running import PATIENCE_S
from tests.doubles.clock import VirtualClock

READY = """echo '{"event": "ready"}' >&$1; """
LEAVING = """echo '{"event": "leaving", "requests": 3, "bound_s": 100000}' >&$1; """


class HurriedClock(VirtualClock):
    """Ten seconds pass at each look, once it `hurries`."""

    hurries = False

    def now(self) -> float:
        self.advance(10.0 if self.hurries else 0.0)
        return super().now()


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
