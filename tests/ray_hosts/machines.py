"""Machines that are namespaces of this one: each has a network, processes, a host name, /tmp and /dev/shm of its own.

They are the hosts of `tests/network/hosts.py`, which has their links and the router between them. Killing the first
process of a machine ends all others on it, as a power cut does.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from loadtest.tied import tied
from tests.faults.deployment import wait_until
from tests.network.hosts import HERE, Hosts
from tests.processes import command_line, has_ended, python_path

PROJECT = Path(__file__).resolve().parents[2]
HOME = "/tmp/home"  # of each machine
PATIENCE_S = 300.0
_BOOT = (
    "mount -t tmpfs none /dev/shm && mount -t tmpfs none /tmp && mkdir -p $HOME && trap '' CHLD && exec sleep infinity"
)


class Machines(Hosts):
    """A router, and machines with these names."""

    def variables(self) -> Mapping[str, str]:
        """The environment of a user who has just logged in."""
        ours = {name: text for name, text in os.environ.items() if not name.startswith(("RAY_", "BATON_", "OMP_"))}
        wanted = {"RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        return {**ours, **wanted, "HOME": HOME, "PYTHONPATH": python_path(PROJECT)}

    def run(self, name: str, *command: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command on a machine to its end."""
        return subprocess.run(
            tied((*self.inside(name), *command)),
            env=self.variables(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def write(self, name: str, path: str, text: str) -> None:
        """Writes a file on a machine."""
        Path(f"/proc/{self._first(name)}/root{path}").write_text(text)

    def inside(self, name: str) -> tuple[str, ...]:
        """See Hosts."""
        return () if name == HERE else ("nsenter", "-t", str(self._first(name)), "-n", "-m", "-p", "-u")

    def processes(self, name: str) -> list[psutil.Process]:
        """What runs on a machine."""
        namespace = self._namespace(self._first(name))
        return [process for process in psutil.process_iter() if self._namespace(process.pid) == namespace]

    def power_off(self, name: str) -> None:
        """Ends all that runs on a machine, at once."""
        running = self.processes(name)
        psutil.Process(self._first(name)).kill()
        assert wait_until(lambda: all(map(has_ended, running))), "a process has outlived its machine"

    def link(self, name: str, state: str) -> None:
        """Pulls the cable of a machine out, "down", or plugs it in, "up"."""
        self._run("router", "ip", "link", "set", self.device_at_router(name), state)

    def is_unplugged(self, name: str) -> bool:
        """Whether the router sees no machine at the other end."""
        command = (*self.inside("router"), "ip", "-br", "link", "show", self.device_at_router(name))
        return " DOWN " in subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def power_on(self, name: str) -> None:
        """Starts a machine again that was powered off. Its files are gone."""
        self._holders[name].wait()
        self._holders[name] = self._hold(name)
        self._link(name)

    def _hold(self, name: str) -> "subprocess.Popen[bytes]":
        apart = ("unshare", "-n", "-m", "-p", "-u", "--fork", "--kill-child", "--mount-proc")
        holder = subprocess.Popen(tied((*apart, "sh", "-c", f"hostname {name} && {_BOOT}")), env=self.variables())
        assert wait_until(lambda: any("sleep" in command_line(child) for child in _children(holder.pid))), "no machine"
        return holder

    def _first(self, name: str) -> int:
        (child,) = _children(self._holders[name].pid)
        return child.pid

    @staticmethod
    def _namespace(pid: int) -> str:
        try:
            return os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            return ""


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
