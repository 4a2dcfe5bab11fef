"""Prefill and decode workers with pages of different sizes, as processes."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from model.fake import FakeRunner
from tests.e2e.baton_process import FAKE, BatonProcess

pytestmark = pytest.mark.slow
RUNNER = FakeRunner()


@pytest.mark.parametrize(("prefill", "decode"), [(4, 16), (16, 4), (6, 10)])
def test_every_token_is_right(fake_folder: Path, tmp_path: Path, prefill: int, decode: int) -> None:
    rng = random.Random(prefill)
    prompts = [[rng.randrange(RUNNER.vocab_size) for _ in range(rng.randint(1, 200))] for _ in range(12)]
    argv = f"--port 0 --max-total-tokens 4800 --chunked-prefill-size 48 --page-size {prefill}".split()
    only_decode = {"FAKE_DECODE_PAGE_SIZE": str(decode)}
    with BatonProcess(str(fake_folder), *argv, log=tmp_path / "log", program=FAKE, variables=only_decode) as baton:
        assert {each["id"]: each["page_size"] for each in baton.workers()} == {"prefill-0": prefill, "decode-0": decode}
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda prompt: baton.tokens(prompt, max_tokens=20, temperature=0), prompts))
        assert answers == [RUNNER.expected_tokens(prompt, 20) for prompt in prompts]
        assert baton.wait_for_rest()
