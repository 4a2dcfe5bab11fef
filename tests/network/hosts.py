"""Machines that are network namespaces of this one, each behind a link of its own to a router, and the router's faults.

    here -----\
               router ----- decode         10.x.y.0/24, drawn from the number of this process
    prefill --/

"here" is the namespace of the tests, where the gateway is. The router swallows what it is told to swallow and tells
nobody, like a firewall that has forgotten a connection, or a cable that is pulled out. This needs root. A namespace
ends with the process that holds it, and that process ends with the tests.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from loadtest.tied import tied
from tests.faults.deployment import wait_until

ESTABLISHED, LISTEN = "01", "0A"  # states of a connection in /proc/net/tcp
HERE = "here"


class Flow(NamedTuple):
    """A TCP connection: the host that dialled and its port, the host that listens and its port."""

    dialler: str
    dialler_port: int
    listener: str
    listener_port: int


def can_make_hosts() -> bool:
    """Whether this process may make namespaces and links, and has the programs for it."""
    try:
        probe = ["unshare", "-n", "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class Hosts:
    """A router and hosts with these names, all of which reach one another and here. Close it."""

    def __init__(self, *names: str) -> None:
        self._names = (HERE, *names)
        number = os.getpid()
        self._prefix = f"10.{64 + number // 256 % 128}.{number % 256}"
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._rules: list[tuple[str, ...]] = []
        try:
            for name in ("router", *names):
                self._holders[name] = self._hold(name)
            assert wait_until(self._all_hold), "a process did not get a network namespace of its own"
            self._run("router", "sysctl", "-qw", "net.ipv4.ip_forward=1")
            for name in self._names:
                self._link(name)
        except BaseException:
            self.close()
            raise

    def address(self, name: str) -> str:
        """Where the others reach a host."""
        return f"{self._prefix}.{4 * self._names.index(name) + 2}"

    def device_at_router(self, name: str) -> str:
        """The router's end of a host's link."""
        return _device("r", self._names.index(name))

    def inside(self, name: str) -> tuple[str, ...]:
        """What to put before a command that is to run on a host."""
        return () if name == HERE else ("nsenter", "-t", str(self._holders[name].pid), "-n")

    # ---- connections ----

    def flows(self, one: str, other: str) -> set[Flow]:
        """The connections between two hosts that the host which dialled takes for good."""
        ports = set()
        for here, there in ((one, other), (other, one)):
            sockets = self._sockets(here)
            listening = {port for port, _, _, state in sockets if state == LISTEN}
            for port, address, far_port, state in sockets:
                if state == ESTABLISHED and address == self.address(there) and port not in listening:
                    ports.add(Flow(here, port, there, far_port))
        return ports

    # ---- faults ----

    def drop(self, flow: Flow) -> None:
        """The router swallows whatever belongs to this connection, both ways."""
        dialler, listener = self.address(flow.dialler), self.address(flow.listener)
        ports = str(flow.dialler_port), str(flow.listener_port)
        for source, target, (sport, dport) in ((dialler, listener, ports), (listener, dialler, ports[::-1])):
            self._swallow("from", source, "to", target, "ipproto", "tcp", "sport", sport, "dport", dport)

    def part(self, one: str, other: str) -> None:
        """The router swallows all that these two send each other."""
        for source, target in ((one, other), (other, one)):
            self._swallow("from", self.address(source), "to", self.address(target))

    def heal(self) -> None:
        """The router passes everything on again."""
        while self._rules:
            self._run("router", "ip", "rule", "del", *self._rules.pop())

    def close(self) -> None:
        """Ends the link from here at once, then the namespaces and with them all other links."""
        link = ["ip", "link", "del", _device("h", 0)]
        subprocess.run(link, capture_output=True, check=False)  # there is none if the start has failed
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def _hold(self, name: str) -> "subprocess.Popen[bytes]":
        """Starts the process that holds the namespace of the router or of a host."""
        return subprocess.Popen(tied(("unshare", "-n", "sleep", "infinity")))

    def _all_hold(self) -> bool:
        ours = os.readlink("/proc/self/ns/net")
        return all(os.readlink(f"/proc/{holder.pid}/ns/net") != ours for holder in self._holders.values())

    def _swallow(self, *what: str) -> None:
        self._run("router", "ip", "rule", "add", *what, "blackhole")
        self._rules.append((*what, "blackhole"))

    def _link(self, name: str) -> None:
        """A pair of interfaces: one at the host, one at the router."""
        index, pid = self._names.index(name), str(self._holders["router"].pid)
        at_host, at_router = _device("h", index), self.device_at_router(name)
        gateway = f"{self._prefix}.{4 * index + 1}"
        there = () if name == HERE else ("netns", str(self._holders[name].pid))
        peer = ("type", "veth", "peer", "name", at_router, "netns", pid)
        self._run(HERE, "ip", "link", "add", "name", at_host, *there, *peer)
        self._run("router", "ip", "addr", "add", f"{gateway}/30", "dev", at_router)
        self._run("router", "ip", "link", "set", at_router, "up")
        self._run(name, "ip", "addr", "add", f"{self.address(name)}/30", "dev", at_host)
        for device in (at_host, "lo"):
            self._run(name, "ip", "link", "set", device, "up")
        everywhere = f"{self._prefix}.0/24" if name == HERE else "default"  # programs look there for their own address
        self._run(name, "ip", "route", "add", everywhere, "via", gateway)

    def _run(self, name: str, *command: str) -> None:
        done = subprocess.run((*self.inside(name), *command), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command} on {name}: {done.stderr}"

    def _sockets(self, name: str) -> list[tuple[int, str, int, str]]:
        """(own port, address and port of the other end, state) of each TCP socket of a host."""
        pid = os.getpid() if name == HERE else self._holders[name].pid
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        return [(_port(row[1]), *_end(row[2]), row[3]) for row in rows]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _device(end: str, index: int) -> str:
    """The name of an interface; names are short."""
    return f"bt{os.getpid()}{end}{index}"


def _port(text: str) -> int:
    return int(text.split(":")[1], 16)


def _end(text: str) -> tuple[str, int]:
    """(address, port) of what the kernel writes: bytes of the address from last to first, in hexadecimal."""
    numbers: Sequence[int] = bytes.fromhex(text.split(":", maxsplit=1)[0])[::-1]
    return ".".join(map(str, numbers)), _port(text)
