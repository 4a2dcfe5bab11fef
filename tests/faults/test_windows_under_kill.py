"""Models with windows give transformers' tokens while requests are preempted, find cached pages, and lose a worker.

A pair serves prompts about the edge of the window, all at once. Its pool is too small for them. Then the decode worker
and the prefill worker are killed in the middle of a request.
"""

import json
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from testkit.checkpoints import WITH_WINDOWS, Architecture
from testkit.reference import NUM_TOKENS, reference
from tests.e2e.baton_process import BatonProcess
from tests.faults.arming import Arming
from tests.faults.deployment import state_of
from tests.selecting import first

FLAGS = "--port 0 --dtype float32 --prefill 1 --decode 1 --retry-wait 600 --context-length 256"
SIZES = {  # the page size; tokens of a chunk and of the pool, which is for two of the longest contexts and a bit
    "page 1": "--page-size 1 --chunked-prefill-size 32 --max-total-tokens 450",
    "page 16": "--page-size 16 --chunked-prefill-size 23 --max-total-tokens 464 --disable-overlap-schedule",
}
MOST_WAVES = 20  # until prompts have found cached pages, and one has been preempted
KILLS = (("decode-0", "decoding"), ("prefill-0", "prefilling"))  # a worker, and the phase in which it is killed


def tokens_and_cached(baton: BatonProcess, prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], int]:
    """The answers to all prompts at once, and how many tokens of the prompts were cached."""

    def answered(prompt: Sequence[int]) -> Any:
        return baton.complete(prompt=list(prompt), max_tokens=NUM_TOKENS, temperature=0, return_token_ids=True)

    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(answered, prompts))
    cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    return [tuple(answer["choices"][0]["token_ids"]) for answer in answers], cached


CELLS = first(0, product(("gpt_oss", *WITH_WINDOWS), SIZES), num_broad=1)


@pytest.mark.parametrize(("arch", "sizes"), CELLS)
def test_tokens_are_those_of_transformers(arch: Architecture, sizes: str, tmp_path: Path) -> None:
    expected, arming = reference(arch), Arming(tmp_path / "hooks")
    argv = ["serve", "--model", str(expected.folder), *FLAGS.split(), *SIZES[sizes].split()]
    with BatonProcess(*argv, log=tmp_path / "log", variables=arming.variables) as baton:
        most_cached = 0
        for _ in range(MOST_WAVES):
            answers, cached = tokens_and_cached(baton, expected.prompts)
            assert answers == list(expected.continuations)
            most_cached = max(most_cached, cached)
            if most_cached > 100 and baton.metric("request_retries_total", reason="retracted"):
                break
        else:
            pytest.fail(f"at most {most_cached} tokens were cached, or nothing was preempted")

        longest = max(expected.prompts, key=len)
        for worker_id, phase in KILLS:
            baton.http.post("/flush_cache").raise_for_status()  # the phases of a prompt need one that is computed
            old, retried = baton.worker(worker_id), baton.metric("request_retries_total", reason="worker_lost")
            arming.arm(phase, longest, worker_id.partition("-")[0], signal.SIGKILL, {worker_id: old.pid})
            answers, _ = tokens_and_cached(baton, expected.prompts)
            proof = json.loads((arming.folder / "proof.json").read_text())
            assert (proof["phase"], proof["pid"]) == (phase, old.pid) and state_of(old.pid) in "XZ"
            assert answers == list(expected.continuations), f"{worker_id} was killed"
            assert baton.metric("request_retries_total", reason="worker_lost") > retried, "nobody needed it"
            assert baton.wait_for_return(worker_id, old.pid)
        assert baton.wait_for_rest()
