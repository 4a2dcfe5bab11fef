"""A deployment whose processes carry phase hooks: arm a fault, see the proof that it fired, see each process's fate."""

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from runtime.clock import MonotonicClock
from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, PATIENCE_S, BatonProcess
from tests.faults.client import Client
from tests.processes import command_line, python_path

HOOKED = Path(__file__).with_name("hooked")
RUNNER = FakeRunner()
CONTEXT = 20_000  # tokens: a request may go on for longer than any test waits
SILENCE_S = 4  # after it a worker is lost; a busy machine's heartbeats come late
FLAGS = (
    "--port 0 --page-size 4 --chunked-prefill-size 48 --pairing round_robin"
    f" --silence-limit {SILENCE_S} --hang-limit 60 --drain-timeout 600"
    f" --context-length {CONTEXT} --max-total-tokens {4 * CONTEXT}"
)
_PAUSE = threading.Event()  # never set: a wait on it is a pause between two looks


def wait_until(what: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    """Asks again and again; False when the time is over."""
    clock = MonotonicClock()
    end = clock.now() + seconds
    while not what():
        if clock.now() > end:
            return False
        _PAUSE.wait(0.01)
    return True


def pause(seconds: float) -> None:
    """Lets time pass where time is what the fault is made of."""
    _PAUSE.wait(seconds)


@dataclass(frozen=True)
class Proof:
    """Written by the hook when it fired. `at` is in seconds of the monotonic clock, which all processes share."""

    phase: str
    at: float
    by: int  # the process in which the phase began
    victim: str  # "gateway", "launcher" or a worker id
    pid: int


class Deployment:
    """`baton serve` with the model of hashes, 2 prefill and 2 decode workers for the topology "2P2D"."""

    def __init__(self, folder: Path, model: Path, topology: str) -> None:
        self.topology = topology
        self.faults, self.temporary = folder / "faults", folder / "temporary"
        for fault in (self.faults, self.temporary):
            fault.mkdir()
        self.num_hits: dict[str, int] = {}  # ends of processes, by role
        self._shared_before = shared_memory()
        counts = {kind: int(count) for count, kind in zip(topology[::2], topology[1::2], strict=True)}
        argv = [str(model), *FLAGS.split()]
        for flag in ("prefill", "decode", "unified"):
            argv += [f"--{flag}", str(counts.get(flag[0].upper(), 0))]
        self.num_ways = counts.get("P", 0) * counts.get("D", 0) + counts.get("U", 0)
        variables = {**hook_variables(self.faults), "TMPDIR": str(self.temporary)}
        self.baton = BatonProcess(*argv, log=folder / "log", program=FAKE, variables=variables, patient=False)
        self._ever: set[psutil.Process] = set()  # identity: number and time of start
        self._at_start = set(self.pids())
        self._rest: dict[str, int] = {}  # descriptors of each process, once all have met
        self.expect_recovery()
        self._rest = self._descriptors()

    # ---- faults ----

    def arm(self, phase: str, marker: list[int], victim: str, number: int) -> None:
        """The fault waits for `phase` of the request whose prompt begins with `marker`. `victim` is a role; signal 0
        holds the process instead, until `let_go`."""
        arm(self.faults, phase, marker, victim, number, self.pids())
        if number and number != signal.SIGSTOP:  # whoever is stopped wakes
            self.num_hits[victim] = self.num_hits.get(victim, 0) + 1

    def proof(self, phase: str) -> Proof:
        """What the hook wrote when it fired; an assertion error when it does not fire, or elsewhere."""
        path = self.faults / "proof.json"
        assert wait_until(path.exists), f"{phase}: the phase was never reached; {self.baton.log_text()[-2000:]}"
        proof = Proof(**json.loads(path.read_text()))
        assert proof.phase == phase
        return proof

    def let_go(self) -> None:
        """Ends a hold; it must still last."""
        (self.faults / "go").touch()
        assert not (self.faults / "hold-is-over").exists(), "the process was not held long enough"

    # ---- processes ----

    def pids(self) -> dict[str, int]:
        """Every process by name: "launcher", "gateway", worker ids."""
        pid_of = {"launcher": self.baton.process.pid}
        for child in self.baton.children():
            if (name := process_name(child)) is not None:
                pid_of[name] = child.pid
        for pid in pid_of.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                self._ever.add(psutil.Process(pid))
        return pid_of

    def expect_hit(self, proof: Proof, number: signal.Signals) -> None:
        """The signal did what it does."""
        victim = proof.pid
        if number == signal.SIGSTOP:
            assert wait_until(lambda: state_of(victim) in "Tt"), f"{proof.victim} was not stopped"
        else:
            assert wait_until(lambda: state_of(victim) in "XZ"), f"{proof.victim} survives {number.name}"

    def expect_recovery(self) -> None:
        """Every process serves, every pair answers exactly, nothing is held; no descriptor, no process too many."""
        assert wait_until(self._is_whole), f"not whole: {self.pids()}; {self.baton.log_text()[-3000:]}"
        clients = [Client(self.baton.url, [7, way, *range(40)], 20).start() for way in range(self.num_ways)]
        assert all(client.has_ended() for client in clients)
        verdicts = [client.verdict(RUNNER.expected_tokens) for client in clients]
        assert set(verdicts) == {"exact"}, f"{verdicts}: {[client.error or client.cut for client in clients]}"
        assert self.baton.wait_for_rest()
        page = self.baton.http.get("/metrics").text
        assert re.search(r"^baton_requests_in_flight{.*} 0\.0$", page, re.MULTILINE)
        assert wait_until(self._has_no_more_descriptors), f"{self._descriptors()}, at first {self._rest}"
        assert set(self.pids()) == self._at_start
        assert len(self.baton.children()) == len(self._at_start) - 1, "a process too many"

    def expect_left(self, name: str) -> None:
        """A worker that was told to end has ended with status 0, and is not started again. The others serve. Ends the
        deployment."""
        assert wait_until(lambda: f"info baton {name} has left" in self.baton.log_text())
        self._at_start.remove(name)
        del self._rest[name]
        self.expect_recovery()
        self.close()

    def expect_end(self, status: int) -> None:
        """The launcher has ended, or does so now, and took everything with it."""
        exit_status = self.baton.process.wait(PATIENCE_S)
        self._close_pipes()
        assert exit_status == status, self.baton.log_text()[-3000:]
        self._expect_nothing_left()

        assert wait_until(lambda: not any(map(is_alive, self._ever))), f"left behind: {self._ever}"
        assert list(self.temporary.iterdir()) == []
        left = shared_memory() - self._shared_before
        assert not {name for name in left if any(str(process.pid) in name for process in self._ever)}, left

    @property
    def is_running(self) -> bool:
        """Whether its launcher has not been seen to end."""
        return self.baton.process.returncode is None

    def close(self) -> None:
        """Ends it as Ctrl-C does, unless it has ended."""
        if self.is_running:
            self.pids()
            assert self.baton.end() == 0, self.baton.log_text()[-3000:]
            self._expect_nothing_left()

    def abandon(self) -> None:
        """Kills what is left after a failure."""
        for process in self._ever:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.baton.process.wait(PATIENCE_S)
        self._close_pipes()

    def _close_pipes(self) -> None:
        self.baton.http.close()
        assert self.baton.process.stdout is not None
        self.baton.process.stdout.close()

    def _expect_nothing_left(self) -> None:
        assert wait_until(lambda: not any(map(is_alive, self._ever))), f"left behind: {self._ever}"
        assert list(self.temporary.iterdir()) == []
        left = shared_memory() - self._shared_before
        assert not {name for name in left if any(str(process.pid) in name for process in self._ever)}, left

    def _is_whole(self) -> bool:
        pids = self.pids()
        try:
            rows = self.baton.workers()
        except httpx.HTTPError:
            return False
        members = {row["id"]: row["pid"] for row in rows}
        return set(pids) == self._at_start == {*members, "launcher", "gateway"} and members.items() <= pids.items()

    def _descriptors(self) -> dict[str, int]:
        return {name: psutil.Process(pid).num_fds() for name, pid in self.pids().items()}

    def _has_no_more_descriptors(self) -> bool:
        now = self._descriptors()
        return all(now[name] <= most for name, most in self._rest.items())


def arm(folder: Path, phase: str, marker: Sequence[int], victim: str, number: int, pids: Mapping[str, int]) -> None:
    """Hooks that watch `folder` send the signal to the victim, of these processes, when the marked request comes to
    `phase`. What they have written of an earlier fault is gone."""
    for path in folder.iterdir():
        path.unlink()
    armed = {"phase": phase, "marker": list(marker), "victim": victim, "signal": int(number), "pids": dict(pids)}
    (folder / "part").write_text(json.dumps(armed))
    (folder / "part").rename(folder / "armed.json")


def hook_variables(folder: Path) -> dict[str, str]:
    """The environment of processes whose hooks watch `folder`."""
    return {"PYTHONPATH": python_path(HOOKED, HOOKED.parents[2]), "PHASE_HOOKS_FOLDER": str(folder)}


def process_name(process: psutil.Process) -> str | None:
    """ "gateway" or the worker id, by its command line; None for what is neither or has ended."""
    argv = command_line(process)
    if "--settings" not in argv:
        return None
    settings = json.loads(argv[argv.index("--settings") + 1])
    return str(settings.get("worker_id", "gateway"))


def state_of(pid: int) -> str:
    """The letter of the kernel: T for stopped, Z for a zombie; X when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs, as more than an entry that its parent has yet to read."""
    return process.is_running() and state_of(process.pid) not in "XZ"


def shared_memory() -> set[str]:
    """Names in the host's shared memory, whoever's they are."""
    return set(os.listdir("/dev/shm"))
