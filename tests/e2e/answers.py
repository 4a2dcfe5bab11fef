"""Answers of a deployment with the fake model, and which of them are right."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import BatonProcess

RUNNER = FakeRunner()
FLAGS = "--port 0 --max-total-tokens 4800 --chunked-prefill-size 48"


def draw_prompts(seed: int, count: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(RUNNER.vocab_size) for _ in range(rng.randint(1, 200))] for _ in range(count)]


def answers_of(baton: BatonProcess, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    with ThreadPoolExecutor(4) as clients:
        return list(clients.map(lambda prompt: baton.tokens(prompt, max_tokens=max_tokens, temperature=0), prompts))


def right_or_unavailable(baton: BatonProcess, prompt: list[int]) -> bool:
    body = {"prompt": prompt, "max_tokens": 200, "temperature": 0, "return_token_ids": True}
    answer = baton.http.post("/v1/completions", json=body)
    if answer.status_code == 503:
        return True
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return answer.status_code == 200 and tokens == RUNNER.expected_tokens(prompt, 200)
