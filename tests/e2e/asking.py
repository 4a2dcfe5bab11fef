"""Asks a server for answers that follow schemas, and looks at them."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.e2e.baton_process import PATIENCE_S, BatonProcess
from tests.schemas import follows, random_schema, with_definitions

MESSAGES = ({"role": "user", "content": "Describe a fox."},)
CHAT = "/v1/chat/completions"


def post(baton: BatonProcess, path: str, body: dict[str, Any], status: int = 200) -> Any:
    """The answer's body."""
    answer = httpx.post(baton.url + path, json=body, timeout=PATIENCE_S)
    assert answer.status_code == status, answer.text
    return answer.json()


def bodies(seeds: Sequence[int], max_tokens: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(schema, body) of requests with random schemas, greedy and not, for two choices each."""
    for seed in seeds:
        rng = random.Random(f"schema {seed}")
        schema = with_definitions(random_schema(rng))
        temperature = rng.choice((0.0, 0.7, 1.5))
        field: dict[str, Any] = rng.choice(
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
                {"guided_json": schema},
                {"structured_outputs": {"json": schema}},
            )
        )
        sampling = {"max_tokens": max_tokens, "seed": seed, "temperature": temperature, "n": 2}
        yield schema, {"messages": MESSAGES, **sampling, **field}


def answers_to(baton: BatonProcess, seeds: Sequence[int], max_tokens: int = 200) -> list[list[tuple[str, str]]]:
    """(finish reason, text) of each choice. All that end by themselves follow their schemas."""
    asked, found = list(bodies(seeds, max_tokens)), []
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: post(baton, CHAT, each[1]), asked))
    for (schema, _), answer in zip(asked, answers, strict=True):
        choices = [(each["finish_reason"], each["message"]["content"]) for each in answer["choices"]]
        assert all(reason == "length" or follows(text, schema) for reason, text in choices), (schema, choices)
        found.append(choices)
    return found
