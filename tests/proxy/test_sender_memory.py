"""A decode worker that is stopped takes nothing: what prefill holds for it stays within its credit, and requests to
another decode worker go on."""

import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.doubles.hash_model import FakeRunner
from tests.faults.client import Client
from tests.faults.deployment import state_of, wait_until
from tests.proxy import large_worker
from tests.proxy.conftest import Lend
from tests.proxy.deployment import Proxied
from tests.proxy.proxy import Way
from transfer.sending.transfer import WINDOW_BYTES

pytestmark = pytest.mark.faults

RUNNER = FakeRunner(num_layers=large_worker.NUM_LAYERS, head_dim=large_worker.HEAD_DIM)
MIB = 1024 * 1024
ALLOWANCE_BYTES = 16 * MIB  # for what libzmq, the allocator and one batch more take
FLAGS = "--page-size 16 --chunked-prefill-size 512 --max-total-tokens 18000 --disable-radix-cache"
LARGE = [[(index + number) % RUNNER.vocab_size for index in range(3500)] for number in range(3)]  # 27 MiB of KV each
COMPANY = [7, 8, 9]
COMPANY_TOKENS = 200
PATIENT = "--silence-limit 60"  # nobody is lost, however busy the machine is
MEMORY = re.compile(r"RssAnon:\s+(\d+) kB")


class Watch:
    """What a prefill process holds, looked at again and again: its own memory, and KV in flight."""

    def __init__(self, deployment: Proxied) -> None:
        self._deployment = deployment
        (row,) = [worker for worker in deployment.baton.workers() if worker["id"] == "prefill-0"]
        self._status = Path(f"/proc/{row['pid']}/status")
        self.most_bytes = self.most_in_flight = 0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Looks while the block runs."""
        self.most_bytes, self.most_in_flight = self.memory(), 0
        end = threading.Event()

        def look() -> None:
            while not end.wait(0.1):  # the gauge comes with each heartbeat, four times a second
                self.most_bytes = max(self.most_bytes, self.memory())
                self.most_in_flight = max(self.most_in_flight, self.in_flight())

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def memory(self) -> int:
        """Bytes that are its own: not KV pages, which are shared memory."""
        match = MEMORY.search(self._status.read_text())
        assert match
        return int(match[1]) * 1024

    def in_flight(self) -> int:
        """Bytes of KV sent and not acknowledged."""
        return int(self._deployment.metric("kv_transfer_in_flight_bytes", worker="prefill-0"))


def start_in_turn(deployment: Proxied) -> tuple[list[Client], list[Client]]:
    """Large prompts to one decode worker, their company to the other: they take turns."""
    clients = []
    for large in LARGE:
        for prompt, max_tokens in ((large, 3), (COMPANY, COMPANY_TOKENS)):
            asked = deployment.metric("request_attempts_total") + 1
            clients += deployment.start([prompt], max_tokens)
            assert wait_until(partial(has_attempts, deployment, asked))
    return clients[::2], clients[1::2]


def has_attempts(deployment: Proxied, count: float) -> bool:
    return deployment.metric("request_attempts_total") >= count


def num_tokens(clients: list[Client]) -> int:
    return sum(len(tokens) for client in clients for tokens in client.tokens.values())


def bytes_passed(deployment: Proxied) -> dict[str, int]:
    """To each decode worker, by its gate."""
    return {gate.name: sum(flow.num_bytes[Way.THERE] for flow in gate.flows) for gate in deployment.gates("data")}


def stop_the_busy_one(deployment: Proxied, before: Mapping[str, int]) -> int:
    """Stops the decode worker to which the large prompts go, once they do; its process."""
    busy: list[str] = []

    def is_busy() -> bool:
        passed = bytes_passed(deployment)
        busy[:] = [name.split()[1] for name in passed if passed[name] > before[name] + MIB]
        return bool(busy)

    assert wait_until(is_busy)
    (pid,) = [int(worker["pid"]) for worker in deployment.baton.workers() if [worker["id"]] == busy]
    os.kill(pid, signal.SIGSTOP)
    return pid


@pytest.mark.parametrize("is_lost", [pytest.param(False, marks=pytest.mark.full), True])
def test_memory_stays_within_credit(is_lost: bool, lend: Lend) -> None:
    flags = FLAGS if is_lost else f"{FLAGS} {PATIENT}"
    deployment = lend(1, 2, "zmq", flags, worker=large_worker.__file__)
    watch = Watch(deployment)
    right = {tuple(COMPANY): RUNNER.expected_tokens(COMPANY, COMPANY_TOKENS)}  # of large ones: as they come undisturbed

    def expected(prompt: list[int], max_tokens: int) -> list[int]:
        return right[tuple(prompt)]

    with watch.looking():
        large, company = start_in_turn(deployment)
        assert deployment.verdicts(company, expected) == ["exact"] * 3
        assert deployment.baton.wait_for_rest()
    undisturbed = watch.most_bytes
    right |= {tuple(client.prompt): client.tokens[0] for client in large}
    assert deployment.verdicts(large, expected) == ["exact"] * 3
    before = bytes_passed(deployment)
    with watch.looking():
        large, company = start_in_turn(deployment)
        pid = stop_the_busy_one(deployment, before)
        so_far = num_tokens(company)
        if is_lost:
            assert wait_until(lambda: pid not in {worker["pid"] for worker in deployment.baton.workers()})
        else:
            assert wait_until(lambda: watch.most_in_flight > WINDOW_BYTES / 2), "nothing is held for it"
        assert state_of(pid) in "Tt"
        assert wait_until(lambda: num_tokens(company) > so_far), "requests to the other worker stand still"
        os.kill(pid, signal.SIGCONT)
        assert deployment.verdicts(company + large, expected) == ["exact"] * 6
        assert deployment.is_whole(3)
        deployment.expect_rest()
    assert watch.most_in_flight <= WINDOW_BYTES + MIB, "in flight"
    assert watch.most_in_flight > 0, "nothing was held for the worker that was stopped"
    assert watch.most_bytes <= undisturbed + WINDOW_BYTES + ALLOWANCE_BYTES
    assert watch.in_flight() == 0
