"""A Ray cluster of one node, started as its users start it, with a token. Commands of Ray and Baton run beside it."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadtest.tied import tied
from testkit.roles import role_of
from tests.processes import command_line, python_path

PROJECT = Path(__file__).resolve().parents[3]
PATIENCE_S = 600.0  # for what should take moments, also beside other load
TRIES = 3  # Ray gives up a start after 30 s
ADDRESS = re.compile(r"--address='([0-9.]+:\d+)'")
COMMANDS = {"ray": "ray.scripts.scripts", "serve": "ray.serve.scripts", "baton": "deploy"}


@dataclass(frozen=True)
class HeadNode:
    """A cluster that runs. `folder` holds all of its files, and the temporary ones of Baton."""

    process: "subprocess.Popen[str]"
    variables: dict[str, str]
    folder: Path

    def say(self, *command: str, **variables: str) -> tuple[int, str]:
        """Runs `ray`, `serve` or `baton`; returns its exit status and what it printed."""
        done = subprocess.run(
            tied(words_of(*command)),
            env={**self.variables, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout + done.stderr

    @property
    def host(self) -> str:
        """The node's address."""
        return self.variables["RAY_ADDRESS"].partition(":")[0]

    def ours(self) -> list[psutil.Process]:
        """The processes of Baton on it."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "--settings" in command_line(child)]

    def ours_of(self, role: str) -> psutil.Process:
        """The only process of a role, or of the gateway."""
        (process,) = [child for child in self.ours() if role_of(command_line(child)) == role]
        return process

    @contextmanager
    def saying(self, *command: str) -> Iterator[None]:
        """Runs a command beside what is in the context, and ends it with that."""
        process = subprocess.Popen(tied(words_of(*command)), env=self.variables, cwd=self.folder)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def words_of(command: str, *words: str) -> tuple[str, ...]:
    """The command line of `ray`, `serve` or `baton` with this interpreter."""
    if command == "baton":
        return (sys.executable, "-P", "-m", COMMANDS[command], *words)
    script = (
        f"import sys; from {COMMANDS[command]} import {'cli' if command == 'serve' else 'main'} as run; sys.exit(run())"
    )
    return (sys.executable, "-P", "-c", script, *words)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


@contextmanager
def head_node(num_cpus: int) -> Iterator[HeadNode]:
    """The cluster, and nothing of it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # sockets in it have to have short paths
    (folder / "t").mkdir()
    client, dashboard, agent = free_ports(3)
    variables = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("RAY_", "BATON_", "OMP_"))},
        "PYTHONPATH": python_path(PROJECT),
        "TMPDIR": str(folder / "t"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(20),
        "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": f"{PATIENCE_S:.0f}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_server_port_wait_time_s": f"{PATIENCE_S:.0f}",
        "RAY_worker_niceness": "0",
    }
    words = words_of(
        "ray", "start", "--head", "--block", "--port=0", f"--num-cpus={num_cpus}",
        f"--object-store-memory={160 << 20}", f"--temp-dir={folder / 'ray'}", f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
    )  # fmt: skip
    process: subprocess.Popen[str] | None = None
    said = ""
    try:
        for _ in range(TRIES):
            process = subprocess.Popen(
                tied(words), env=variables, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            address, said = read_address(process)
            if address:
                variables["RAY_ADDRESS"] = address
                yield HeadNode(process, variables, folder)
                return
            end(process)
            process = None
        raise AssertionError(f"no cluster: {said[-3000:]}")
    finally:
        if process is not None:
            end(process)
        shutil.rmtree(folder)


def read_address(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """The address that `ray start` prints, "" if it ends without one, and what it has said."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if match := ADDRESS.search(line):
            return match[1], said
    return "", said


def end(process: "subprocess.Popen[str]") -> None:
    """Ends `ray start` and every process that it has started, and theirs."""
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
        for child in started:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(started, timeout=PATIENCE_S)
    process.kill()
    process.communicate()
