"""A group of ranks as its users run it: it serves, and a rank that is killed or paused ends all of it, named."""

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, BatonProcess
from tests.processes import has_ended
from tests.selecting import full

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
LONG: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 1500, "temperature": 0, "return_token_ids": True}
RANKS = ("--dp-size", "3", "--enable-dp-attention", "--max-total-tokens", "4096")


@pytest.mark.parametrize(
    "number, reason",
    [
        full((signal.SIGKILL, "")),  # the launcher notices its end before any rank notices its silence
        (signal.SIGSTOP, "has been silent for"),
    ],
)
def test_an_idle_rank_that_is_lost_in_mid_stream_ends_its_group_and_no_stream(
    number: signal.Signals, reason: str, fake_folder: Path, tmp_path: Path
) -> None:
    """The stream goes on in the other group, and the lost one is started again."""
    flags = ("--port", "0", "--prefill", "0", "--decode", "0", "--unified", "2", *RANKS)
    with BatonProcess(str(fake_folder), *flags, log=tmp_path / "log", program=FAKE) as baton:
        assert len(baton.workers()) == 6
        stream = baton.stream(**LONG)
        tokens = list(next(stream)["choices"][0]["token_ids"])
        assert baton.wait_until(lambda: any(row["running"] for row in baton.workers()))
        busy = next(row["id"] for row in baton.workers() if row["running"])
        group, _, rank = busy.rpartition(".")
        idle = f"{group}.{(int(rank) + 1) % 3}"
        lost = [psutil.Process(row["pid"]) for row in baton.workers() if row["id"].startswith(group)]
        untouched = {row["instance"] for row in baton.workers() if not row["id"].startswith(group)}
        baton.worker(idle).send_signal(number)

        for chunk in stream:
            tokens += chunk["choices"][0]["token_ids"] if chunk.get("choices") else []
        assert tokens == RUNNER.expected_tokens(LONG["prompt"], LONG["max_tokens"])
        assert baton.wait_until(lambda: all(map(has_ended, lost)))
        if reason:
            assert f"rank {idle[-1]} {reason}" in baton.log_text()
        pids = {process.pid for process in lost}
        assert baton.wait_until(
            lambda: len(baton.workers()) == 6 and not pids & {row["pid"] for row in baton.workers()}
        )
        assert untouched <= {row["instance"] for row in baton.workers()}, "the other group notices nothing"
        assert baton.tokens([9, 9], max_tokens=5, temperature=0) == RUNNER.expected_tokens([9, 9], 5)
        assert baton.wait_for_rest()
