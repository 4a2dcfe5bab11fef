"""How deployments start and end: readiness, parts started one by one, Ctrl-C, kill -9 of launcher and workers."""

import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.machine import count_cores
from tests.e2e.baton_process import FAKE, BatonProcess
from tests.processes import command_line
from tests.selecting import broad

pytestmark = pytest.mark.slow
LONG: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 1500, "temperature": 0, "return_token_ids": True}


def roles(baton: BatonProcess) -> list[str]:
    return sorted(worker["role"] for worker in baton.workers())


def test_parts_started_one_at_a_time(tmp_path: Path) -> None:
    """Not healthy before a pair is there; healthy then; both serve; and not healthy when one has left."""
    with BatonProcess("gateway", "--port", "0", log=tmp_path / "gateway", patient=False) as gateway:
        found = re.search(r"tcp://[0-9.]+:\d+", gateway.ready)
        assert found is not None
        assert (gateway.http.get("/health").status_code, gateway.workers()) == (503, [])
        refused = gateway.http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 4})
        assert refused.status_code == 503
        assert "worker" in refused.json()["error"]["message"]

        join = ("worker", "--gateway", found.group(), "--max-total-tokens", "2048", "--workers-on-host", "2")
        prefill = BatonProcess(*join, "--role", "prefill", "--worker-id", "p", log=tmp_path / "p")
        with prefill:
            assert gateway.wait_until(lambda: roles(gateway) == ["prefill"])
            assert gateway.http.get("/health").status_code == 503
            with BatonProcess(*join, "--role", "decode", log=tmp_path / "d") as decode:
                assert gateway.wait_until(lambda: roles(gateway) == ["decode", "prefill"])
                assert gateway.http.get("/health").json() == {"status": "ok"}
                assert gateway.worker("p").ppid() == prefill.process.pid
                answer = gateway.complete(prompt="Once upon a time", max_tokens=8, ignore_eos=True)
                assert answer["usage"]["completion_tokens"] == 8
                assert decode.end(signal.SIGTERM) == 0
            assert gateway.wait_until(lambda: roles(gateway) == ["prefill"])
            assert gateway.http.get("/health").status_code == 503


@pytest.mark.parametrize("number", [signal.SIGINT, broad(signal.SIGTERM)])
def test_a_signal_ends_everything_also_in_mid_stream(number: signal.Signals, fake_folder: Path, tmp_path: Path) -> None:
    with BatonProcess(str(fake_folder), "--port", "0", log=tmp_path / "log", program=FAKE, patient=False) as baton:
        assert len(baton.children()) == 3
        stream = baton.stream(**LONG)
        next(stream)
        assert baton.end(number) == 0


def test_killing_the_launcher_leaves_nothing(fake_folder: Path, tmp_path: Path) -> None:
    flags = ("--port", "0", "--unified", "1")
    with BatonProcess(str(fake_folder), *flags, log=tmp_path / "log", program=FAKE, patient=False) as baton:
        assert len(baton.children()) == 4
        assert baton.end(signal.SIGKILL) == -signal.SIGKILL


def test_each_worker_gets_its_share_of_the_cores(fake: BatonProcess) -> None:
    share = str(max(1, count_cores() // 4))
    assert {worker["device"] for worker in fake.workers()} == {"cpu"}
    for worker in fake.workers():
        environment = psutil.Process(worker["pid"]).environ()
        assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == share
    gateway = next(child for child in fake.children() if "gateway" in command_line(child))
    assert gateway.environ()["OMP_NUM_THREADS"] == "1"
