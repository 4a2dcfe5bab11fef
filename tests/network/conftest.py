"""A gateway here, and workers of the bundled model on hosts of their own: one deployment for each module of tests."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.baton_process import BatonProcess
from tests.network.hosts import HERE, Hosts, can_make_hosts

SMALL = ("--max-total-tokens", "2048", "--dtype", "float32", "--transfer-backend", "zmq", "--disable-radix-cache")
PATIENT = ("--hang-limit", "0", "--trust-network")  # no process is killed because the machine is busy
PROMPT = "Once upon a time there was a little boat"
SAMPLE = re.compile(r"^baton_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
Serve = Callable[..., "Served"]


class Served:
    """A gateway, its workers, and the network between them."""

    def __init__(self, gateway: BatonProcess, workers: Mapping[str, BatonProcess], hosts: Hosts) -> None:
        self.gateway = gateway
        self.hosts = hosts
        self._workers = workers

    def answer(self) -> str:
        """The model's text, which is always the same."""
        return str(self._complete()["choices"][0]["text"])

    def computed_by(self) -> str:
        """The worker that computes the prompt of the next request."""
        stamps = self._complete(timeline=True)["timeline"]
        (worker,) = {stamp["worker"] for stamp in stamps if stamp["name"] == "prompt computed"}
        return str(worker)

    def _complete(self, **body: Any) -> Any:
        return self.gateway.complete(prompt=PROMPT, max_tokens=12, temperature=0, ignore_eos=True, **body)

    def log(self, worker: str) -> str:
        """What a worker and its launcher have written."""
        return self._workers[worker].log_text()

    def num_retries(self) -> float:
        """Attempts after one that failed."""
        page = self.gateway.http.get("/metrics").text
        return sum(float(value) for name, _, value in SAMPLE.findall(page) if name == "request_retries_total")


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts workers of these names on hosts of these names; the name of each begins with its role."""
    if not can_make_hosts():
        pytest.skip("network namespaces need root and the program `ip`")
    folder = tmp_path_factory.mktemp("network")
    with ExitStack() as stack:

        def begin(*workers: str) -> Served:
            hosts = stack.enter_context(Hosts(*workers))
            control = ("--control", f"tcp://{hosts.address(HERE)}:0", "--pairing", "round_robin")
            gateway = BatonProcess("gateway", "--port", "0", *control, *PATIENT, log=folder / "gateway")
            stack.enter_context(gateway)
            match = re.search(r"tcp://[0-9.]+:\d+", gateway.ready)
            assert match is not None, gateway.ready

            started: dict[str, BatonProcess] = {}
            for name in workers:
                join = ("--gateway", match.group(), "--role", name.split("-", maxsplit=1)[0], "--worker-id", name)
                argv = ("worker", *join, "--workers-on-host", str(len(workers)), *SMALL, *PATIENT)
                started[name] = BatonProcess(*argv, log=folder / name, inside=hosts.inside(name))
                stack.enter_context(started[name])
            assert gateway.wait_until(lambda: len(gateway.workers()) == len(workers))
            return Served(gateway, started, hosts)

        yield begin
