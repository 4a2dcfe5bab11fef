"""Options of scheduling, with real processes over HTTP: how many may wait, priorities, and launches of one kind."""

import random
from pathlib import Path

import pytest

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, BatonProcess
from tests.selecting import first

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()
TOPOLOGIES = {"pair": "", "unified": "--prefill 0 --decode 0 --unified 1"}
POLICIES = "--schedule-policy lpm --max-prefill-tokens 100 --enable-mixed-chunk false"


@pytest.mark.parametrize("topology", first(1, TOPOLOGIES))
def test_when_too_many_wait_clients_get_429_and_nothing_stays(fake_folder: Path, tmp_path: Path, topology: str) -> None:
    rng = random.Random(15)
    prompts = [[rng.randrange(RUNNER.vocab_size) for _ in range(rng.randint(10, 60))] for _ in range(12)]
    flags = f"--port 0 --max-running-requests 1 --max-queued-requests 2 --max-attempts 1 {TOPOLOGIES[topology]}"
    with BatonProcess(str(fake_folder), *flags.split(), *POLICIES.split(), log=tmp_path / "log", program=FAKE) as baton:
        never = baton.http.post("/v1/completions", json={"prompt": prompts})
        assert never.status_code == 400
        assert "expected at most 3, which the workers run and let wait together" in never.json()["error"]["message"]

        baton.complete(
            prompt=prompts[0], max_tokens=1
        )  # now the pair has met, and the decode worker sends jobs at once
        for stream in (False, True):
            held = baton.stream(prompt=prompts[:3], max_tokens=1000)
            next(held)  # one prompt runs, so two wait
            body = {"prompt": prompts[3], "max_tokens": 1, "stream": stream}
            refused = baton.http.post("/v1/completions", json=body)
            if not stream:
                assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
                assert refused.json()["error"]["code"] == "overloaded"
            assert "waiting line is full (--max-queued-requests 2)" in refused.text
            held.close()
            assert baton.wait_for_rest()

        few = baton.complete(prompt=prompts[:2], max_tokens=50, temperature=0, return_token_ids=True, priority=-7)
        for choice, prompt in zip(few["choices"], prompts, strict=False):
            assert choice["token_ids"] == RUNNER.expected_tokens(prompt, 50)
        assert baton.wait_for_rest()
