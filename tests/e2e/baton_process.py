"""Starts `baton` as a user does: real processes, real sockets. It waits for the ready line.

No process is left behind, even if the tests are interrupted or killed.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from loadtest.tied import tied
from runtime.clock import MonotonicClock
from tests.processes import python_path

PROJECT = Path(__file__).resolve().parents[2]
SERVE_FAKE = str(Path(__file__).with_name("serve_fake.py"))
PATIENCE_S = 600.0  # for what should take moments, also beside other load; only a failure takes so long
PATIENT = ("--silence-limit", "60")  # a busy machine's heartbeats come late
BATON = ("-P", "-m", "deploy")
SAMPLE = re.compile(r"^baton_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
FAKE = (SERVE_FAKE,)  # the same flags, with workers that serve the model of hashes


class BatonProcess:
    """One `baton` command, ready. Its gateway loses no worker for late heartbeats, unless `patient` is False."""

    def __init__(
        self,
        *argv: str,
        log: Path,
        program: Sequence[str] = BATON,
        variables: Mapping[str, str] | None = None,
        patient: bool = True,
        inside: Sequence[str] = (),
    ) -> None:
        """`inside` stands before the command: what starts it on another host."""
        self._log = log
        if patient and (program is FAKE or argv[0] in ("serve", "gateway")) and "--silence-limit" not in argv:
            argv = (*argv, *PATIENT)
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                tied((*inside, sys.executable, *program, *argv)),
                env={**environment(), **(variables or {})},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            self.ready = self._read_ready()
        except BaseException:  # whatever ends the wait, a test's timeout too: nobody else knows this process
            self.process.kill()
            self.process.communicate()
            raise
        found = re.search(r"http://[0-9.]+:\d+", self.ready)
        self.url = found.group() if found else ""
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def _read_ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Ready: "), f"not ready: {self.log_text()[-3000:]}"
        return line

    def log_text(self) -> str:
        """What it and its children wrote to stderr."""
        return self._log.read_text(errors="replace")

    # ---- processes ----

    def children(self) -> list[psutil.Process]:
        """Gateway and workers."""
        return psutil.Process(self.process.pid).children()

    def descendants(self) -> list[psutil.Process]:
        """Gateway and workers, and what they have started: the gateway's process for trials of grammars."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def worker(self, worker_id: str) -> psutil.Process:
        """The process of a worker."""
        pid = next(row["pid"] for row in self.workers() if row["id"] == worker_id)
        return psutil.Process(pid)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Sends a signal, asserts that no process is left, and returns the exit status."""
        self.http.close()
        children = self.descendants()
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        _, alive = psutil.wait_procs(children, PATIENCE_S)
        for child in alive:
            child.kill()
        assert not alive, f"left behind: {alive}"
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            status = self.end()
            assert status == 0 or kind is not None, self.log_text()[-3000:]

    # ---- HTTP ----

    def get(self, path: str) -> Any:
        """The JSON at `path`."""
        return self.http.get(path).raise_for_status().json()

    def complete(self, **body: Any) -> Any:
        """A completion that is not streamed; the choices of prompt and n by index."""
        response = self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def tokens(self, prompt: Sequence[int], **body: Any) -> list[int]:
        """Token ids in, token ids out."""
        answer = self.complete(prompt=list(prompt), return_token_ids=True, **body)
        found: list[int] = answer["choices"][0]["token_ids"]
        return found

    def stream(self, **body: Any) -> Generator[dict[str, Any], None, None]:
        """The chunks of a streamed completion, {"done": True} for [DONE]. Closing the iterator disconnects."""
        with self.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            yield from map(read_event, filter(None, response.iter_lines()))

    def workers(self) -> list[dict[str, Any]]:
        """`/workers`."""
        found: list[dict[str, Any]] = self.get("/workers")
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of what /metrics shows under `name` with these labels, among others."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        samples = SAMPLE.findall(self.http.get("/metrics").text)
        return sum(float(value) for found, label, value in samples if found == name and wanted <= set(label.split(",")))

    def wait_until(self, what: Callable[[], object]) -> bool:
        """Asks again and again, without hurry; False when patience is over."""
        tries = int(PATIENCE_S / 0.02)
        # A poll of the process's end doubles as the pause between two looks.
        return any(what() or not self._pause() for _ in range(tries))

    def instance(self, worker_id: str) -> int:
        """Of a worker that is a member; 0 if it is none."""
        return next((int(row["instance"]) for row in self.workers() if row["id"] == worker_id), 0)

    def wait_for_instance(self, worker_id: str, old: int) -> bool:
        """Whether the worker comes to be a member as another instance than `old`."""
        return self.wait_until(lambda: self.instance(worker_id) not in (0, old))

    def wait_for_return(self, worker_id: str, pid: int) -> bool:
        """Whether the worker that was the process `pid` comes to be a member as another process."""
        return self.wait_until(lambda: any(each["id"] == worker_id and each["pid"] != pid for each in self.workers()))

    def wait_for_rest(self) -> bool:
        """Whether every worker comes to hold nothing, by its own word of after this call."""
        called = MonotonicClock().now()

        def all_rest() -> bool:
            asked = MonotonicClock().now()  # the answer's ages are counted from a later moment
            return all(asked - each["heartbeat_age_s"] > called and is_at_rest(each) for each in self.workers())

        return self.wait_until(all_rest)

    def wait_for_work(self) -> bool:
        """Whether some worker comes to hold something."""
        return self.wait_until(lambda: not all(map(is_at_rest, self.workers())))

    def _pause(self) -> bool:
        try:
            self.process.wait(0.02)
        except subprocess.TimeoutExpired:
            return True
        raise AssertionError(f"it ended: {self.log_text()[-3000:]}")


def environment() -> dict[str, str]:
    """Ours, with this project importable, and without what tests set for themselves."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("OMP_")}, "PYTHONPATH": python_path(PROJECT)}


def read_event(line: str) -> dict[str, Any]:
    """The JSON of one event; {"done": True} for [DONE]."""
    assert line.startswith("data: "), line
    text = line.removeprefix("data: ")
    found: dict[str, Any] = {"done": True} if text == "[DONE]" else json.loads(text)
    return found


def is_at_rest(worker: Mapping[str, Any]) -> bool:
    """Whether one row of /workers holds nothing but what it has cached."""
    pages = worker["kv_pages"]
    held = [pages[name] for name in ("owned", "reserved", "quarantined")]
    is_all_free = pages["free"] + pages["cached"] == pages["total"]
    return is_all_free and not any(held) and worker["running"] == worker["waiting"] == 0
