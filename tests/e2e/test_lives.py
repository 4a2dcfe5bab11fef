"""How deployments start and end: readiness, parts started one by one, Ctrl-C, kill -9 of launcher and workers."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.machine import count_cores
from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, BatonProcess
from tests.processes import command_line
from tests.selecting import broad

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
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


def tokens_of_both(stream: Iterator[dict[str, Any]]) -> list[int]:
    """The first token, which prefill sends, and one of decode, which has the KV by then."""
    tokens: list[int] = []
    while len(tokens) < 2:
        tokens += next(stream)["choices"][0]["token_ids"]
    return tokens


@pytest.mark.broad
@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_a_killed_worker_ends_its_streams_with_an_error(victim: str, fake_folder: Path, tmp_path: Path) -> None:
    pairs = ("--port", "0", "--prefill", "2", "--decode", "2", "--page-size", "1", "--pairing", "round_robin")
    flags = (
        *pairs,
        "--max-restarts",
        "0",
        "--max-attempts",
        "1",
        "--retry-wait",
        "0",
    )  # nothing is mended or waited for
    with BatonProcess(str(fake_folder), *flags, log=tmp_path / "log", program=FAKE) as baton:
        streams = [baton.stream(**LONG) for _ in range(4)]
        begun = [tokens_of_both(stream) for stream in streams]
        baton.worker(victim).kill()
        expected = RUNNER.expected_tokens(LONG["prompt"], LONG["max_tokens"])
        broken = 0
        for tokens, stream in zip(begun, streams, strict=True):
            *chunks, last = stream
            for chunk in chunks:
                tokens += chunk["choices"][0]["token_ids"] if "choices" in chunk else []
            assert tokens == expected[: len(tokens)]
            if "error" in last:
                assert not any("done" in chunk or "error" in chunk for chunk in chunks)
                assert last["error"]["code"] == "worker_lost"
                broken += 1
            else:
                assert "done" in last
                assert tokens == expected
        # Decode needs its prefill worker no more once it has the KV.
        assert broken == (2 if victim == "decode-0" else 0)
        assert baton.wait_until(lambda: len(baton.workers()) == 3)
        assert baton.tokens([9, 9], max_tokens=5, temperature=0) == RUNNER.expected_tokens([9, 9], 5)
        assert baton.wait_for_rest()

        survivor = victim.replace("0", "1")
        baton.worker(survivor).kill()
        assert baton.wait_until(lambda: baton.http.get("/health").status_code == 503)
        refused = baton.http.post("/v1/completions", json={"prompt": [1], "max_tokens": 2})
        assert refused.status_code == 503
        assert baton.wait_for_rest()
