"""A Ray cluster of several machines with Baton on it, started by the commands of docs/ray.md."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import psutil
import yaml

from runtime.clock import MonotonicClock
from tests.deploy.ray.head_node import words_of
from tests.faults.deployment import pause
from tests.processes import command_line
from tests.ray_hosts.machines import HOME, Machines

FILE = "/tmp/baton.yaml"  # on the head
PATIENCE_S = 300.0
ANSWER_S = 2.0  # for a look at what may have no network
_LITTLE_MEMORY = ("--object-store-memory", "100000000")
_CLIENTS = re.compile(r"Clients talk to (\S+)\. Try:")
_LOST = re.compile(r"^baton_workers_lost_total(?:\{.*\})? (\S+)$", re.MULTILINE)
_KNOWN_BY = "--settings"  # on the command line of each process of Baton


class Cluster:
    """`head`, which computes nothing, and nodes with `cpus` CPUs each. `store` is the address of a Redis, or empty."""

    def __init__(self, machines: Machines, nodes: Sequence[str], cpus: int, store: str = "") -> None:
        self.machines = machines
        self.nodes = nodes
        self.url = ""
        self._cpus = cpus
        self._redis = ("env", f"RAY_REDIS_ADDRESS={store}") if store else ()
        self._token = self.say("head", "ray", "get-auth-token", "--generate").partition("\n")[0].strip()
        self.start_head()
        for name in nodes:
            self.start_node(name)

    # ---- commands ----

    def start_head(self) -> None:
        """`ray start --head` on the head."""
        self._write_token("head")
        self.say("head", "ray", "start", "--head", "--num-cpus", "0", *_LITTLE_MEMORY)

    def start_node(self, name: str) -> None:
        """`ray start` on another node."""
        self._write_token(name)
        address = f"{self.machines.address('head')}:6379"
        self.say(name, "ray", "start", "--address", address, "--num-cpus", str(self._cpus), *_LITTLE_MEMORY)

    def deploy(self, changes: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """`serve deploy` of the file, with other values in its deployments: by name, the keys that change."""
        said = yaml.safe_load(self.machines.run("head", "cat", FILE).stdout)
        for deployment in said["applications"][0]["deployments"]:
            for key, value in (changes or {}).get(deployment["name"], {}).items():
                deployment[key] = {**deployment[key], **value} if isinstance(value, Mapping) else value
        self.machines.write("head", FILE, yaml.safe_dump(said))
        self.say("head", "serve", "deploy", FILE)

    def say(self, machine: str, *command: str) -> str:
        """Runs `ray`, `serve` or `baton` on a machine. Returns what it printed."""
        done = self.machines.run(machine, *self._redis, *words_of(*command))
        assert done.returncode == 0, f"{command} on {machine}: {done.stdout}{done.stderr}"
        return done.stdout

    def status(self) -> str:
        """What `baton ray status` prints. Clients follow the address in it."""
        done = self.machines.run("head", *self._redis, *words_of("baton", "ray", "status"))
        text = done.stdout + done.stderr
        if match := _CLIENTS.search(text):
            self.url = match[1]
        return text

    def _write_token(self, name: str) -> None:
        if name != "head" or not self.machines.run(name, "ls", f"{HOME}/.ray/auth_token").stdout:
            folder = f"{HOME}/.ray"
            self.machines.run(name, "mkdir", "-p", folder)
            self.machines.write(name, f"{folder}/auth_token", self._token)
            self.machines.run(name, "chmod", "600", f"{folder}/auth_token")

    # ---- what is there ----

    def workers(self) -> list[dict[str, Any]]:
        """The rows of /workers. None while nothing answers."""
        try:
            rows: list[dict[str, Any]] = httpx.get(f"{self.url}/workers", timeout=ANSWER_S).json()
        except (httpx.HTTPError, json.JSONDecodeError):
            return []
        return rows

    def num_lost(self) -> int:
        """How many workers the gateway has counted as lost since it started."""
        try:
            page = httpx.get(f"{self.url}/metrics", timeout=ANSWER_S).text
        except httpx.HTTPError:
            return 0
        match = _LOST.search(page)
        return int(float(match[1])) if match else 0

    def counted(self) -> dict[str, int]:
        """Ready workers by role."""
        rows = [row for row in self.workers() if row["state"] == "ready"]
        return {role: sum(row["role"] == role for row in rows) for role in sorted({row["role"] for row in rows})}

    def ours(self, name: str = "") -> list[psutil.Process]:
        """The processes of Baton, of all machines or of one."""
        names = (name,) if name else self.nodes
        return [
            process for node in names for process in self.machines.processes(node) if _KNOWN_BY in command_line(process)
        ]

    def holder_of(self, worker: str) -> tuple[str, psutil.Process]:
        """(machine, process) of a worker by its name, or of the gateway by the name "gateway"."""
        is_its = " gateway " if worker == "gateway" else f'"{worker}"'
        for node in self.nodes:
            for process in self.ours(node):
                if is_its in " ".join(command_line(process)):
                    return node, process
        raise AssertionError(f"{worker} runs nowhere")

    def crowded(self) -> str:
        """A role of which all workers are on one machine: then its loss leaves nobody to go on. Empty if there is
        none."""
        places: dict[str, set[str]] = {}
        for row in self.workers():
            places.setdefault(row["role"], set()).add(self.holder_of(row["id"])[0])
        return next((role for role, machines in places.items() if len(machines) == 1), "")

    def busiest(self, role: str) -> dict[str, Any]:
        """The worker of a role with most requests."""
        rows = [row for row in self.workers() if row["role"] == role]
        return max(rows, key=lambda row: int(row["running"]) + int(row["waiting"]))

    def far_flows(self) -> int:
        """TCP connections between the two machines that compute."""
        one, two = self.nodes[:2]
        return len(self.machines.flows(one, two))


def until(what: Callable[[], object], every_s: float = 0.1) -> None:
    """Looks again and again; fails when patience is over."""
    clock = MonotonicClock()
    end = clock.now() + PATIENCE_S
    while not what():
        assert clock.now() < end, f"not within {PATIENCE_S:.0f} s"
        pause(every_s)
