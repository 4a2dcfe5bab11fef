"""A worker that is stopped until it is lost returns as the same process, another instance, with the cache it had."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, PATIENCE_S, BatonProcess
from tests.faults.client import Client

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
PROMPT = list(range(200))
MAX_TOKENS = 1500  # of streams: far more than come before their worker is stopped
FLAGS = "--port 0 --page-size 4 --max-total-tokens 32768 --silence-limit 3 --retry-wait 600 --hang-limit 0"


@dataclass(frozen=True)
class Held:
    """What a deployment holds of the system."""

    descriptors: dict[str, int]  # by process
    mappings: dict[str, int]  # of KV memory
    shared: int  # files in /dev/shm

    @staticmethod
    def by(baton: BatonProcess) -> "Held":
        """Now."""
        found = {row["id"]: psutil.Process(row["pid"]) for row in baton.workers()}
        maps = {name: Path(f"/proc/{each.pid}/maps").read_text().count("baton-kv") for name, each in found.items()}
        return Held({name: each.num_fds() for name, each in found.items()}, maps, len(os.listdir("/dev/shm")))


@pytest.fixture(scope="module", params=["1 1 0", "0 0 1"], ids=["pair", "unified"])
def baton(
    request: pytest.FixtureRequest, fake_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BatonProcess]:
    counts = zip(("--prefill", "--decode", "--unified"), request.param.split(), strict=True)
    argv = [str(fake_folder), *FLAGS.split(), *(word for pair in counts for word in pair)]
    log = tmp_path_factory.mktemp("returns") / "log"
    with BatonProcess(*argv, log=log, program=FAKE, patient=False) as found:
        yield found


def cached_tokens(baton: BatonProcess, prompt: list[int]) -> int:
    """The answer to a known prompt is right; how many of the prompt's tokens were cached."""
    answer = baton.complete(prompt=prompt, max_tokens=5, temperature=0, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == RUNNER.expected_tokens(prompt, 5)
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@contextmanager
def asleep(baton: BatonProcess, *names: str) -> Iterator[None]:
    """Within, the workers are stopped, and lost in the end; then they wake, and return."""
    pids = {name: baton.worker(name).pid for name in names}
    instances = {name: baton.instance(name) for name in names}
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
        assert baton.wait_until(lambda: not any(map(baton.instance, names))), "never lost"
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
    assert all(baton.wait_for_instance(name, instance) for name, instance in instances.items())
    assert {name: baton.worker(name).pid for name in names} == pids


def cached_pages(baton: BatonProcess, name: str) -> int:
    """By the worker's own word."""
    return next(int(row["kv_pages"]["cached"]) for row in baton.workers() if row["id"] == name)


@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_sleeps_under_streams_returns_with_its_cache(baton: BatonProcess, index: int) -> None:
    """What it had begun goes on without a wrong token, and so does what comes while it sleeps."""
    names = sorted((row["id"] for row in baton.workers()), reverse=True)
    name, totals = names[index % len(names)], ("workers_lost_total", "workers_joined_total", "request_retries_total")
    cached_tokens(baton, PROMPT)
    assert baton.wait_for_rest()
    before, num_told = [baton.metric(each) for each in totals], baton.log_text().count("declared lost")
    num_cached = cached_pages(baton, name)
    clients = [Client(baton.url, [number, *range(50)], MAX_TOKENS).start() for number in range(4)]
    assert all(client.has_begun() for client in clients)

    with asleep(baton, name):
        clients += [Client(baton.url, [number, *range(90)], 20).start() for number in range(3)]
    assert all(client.has_ended(PATIENCE_S) for client in clients)
    assert [client.verdict(RUNNER.expected_tokens) for client in clients] == ["exact"] * 7
    num_lost, num_joined, num_retried = (baton.metric(each) - then for each, then in zip(totals, before, strict=True))
    assert (num_lost, num_joined) == (1, 1) and num_retried >= 1, "it slept when nobody needed it"
    assert baton.log_text().count("declared lost") == num_told + 1

    assert baton.wait_for_rest()
    assert cached_pages(baton, name) >= num_cached > 0
    assert cached_tokens(baton, PROMPT) > 150, "its cache is lost"
    assert "is started again" not in baton.log_text() and "serves again" not in baton.log_text()


def test_a_flush_while_it_sleeps_is_not_missed(baton: BatonProcess) -> None:
    name = max(row["id"] for row in baton.workers())  # prefill, or unified
    cached_tokens(baton, PROMPT)
    assert cached_tokens(baton, PROMPT) > 150
    with asleep(baton, name):
        assert baton.wait_until(lambda: not baton.instance(name)), "never lost"
        baton.http.post("/flush_cache").raise_for_status()
    assert cached_tokens(baton, PROMPT) == 0
    assert cached_tokens(baton, PROMPT) > 150


def test_nothing_is_left_of_former_lives(baton: BatonProcess) -> None:
    """Descriptors, mappings and shared memory are as many after each return, also if all workers slept at once."""
    held: list[Held] = []
    for _ in range(3):
        with asleep(baton, *(row["id"] for row in baton.workers())):
            pass
        cached_tokens(baton, PROMPT)
        assert baton.wait_for_rest()
        if held:
            assert baton.wait_until(lambda: Held.by(baton) == held[0]), f"{Held.by(baton)}, at first {held[0]}"
        held.append(Held.by(baton))
