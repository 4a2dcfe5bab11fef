"""Answers of the bundled model follow their grammars, over HTTP: through OpenAI's client, and for random schemas."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("openai", reason="the package `openai` is not installed")

import openai
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.e2e.asking import answers_to, post
from tests.e2e.baton_process import PATIENCE_S, BatonProcess

FLAGS = "serve --port 0 --dtype float32 --context-length 1024"
PAIR, UNIFIED = "--prefill 1 --decode 1", "--prefill 0 --decode 0 --unified 1"
TOPOLOGIES = (PAIR, UNIFIED, UNIFIED + " --disable-overlap-schedule")
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Describe a fox."}]
MAX_TOKENS = 200


class Animal(BaseModel):
    """What the model is asked for."""

    name: str
    legs: Literal[2, 4]
    tame: bool


def answers_of(flags: str, log: Path, seeds: Sequence[int]) -> list[list[tuple[str, str]]]:
    """(finish reason, text) of each choice of a server with these flags, which then serves others, too."""
    with BatonProcess(*FLAGS.split(), *flags.split(), log=log) as baton:
        found = answers_to(baton, seeds)
        plain = post(baton, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})
    assert plain["choices"][0]["text"]
    return found


@pytest.mark.slow
def test_answers_follow_random_schemas_on_every_topology(tmp_path: Path) -> None:
    found = [answers_of(flags, tmp_path / f"{place}.log", range(12)) for place, flags in enumerate(TOPOLOGIES[:2])]
    assert found[0] == found[1], "the same seeds give the same answers"
    reasons = [reason for choices in found[0] for reason, _ in choices]
    assert reasons.count("stop") >= 0.8 * len(reasons)


@pytest.mark.slow
def test_openais_client_parses_answers(story: BatonProcess) -> None:
    with openai.OpenAI(base_url=story.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        answer = client.chat.completions.parse(
            model="story", messages=MESSAGES, response_format=Animal, max_tokens=MAX_TOKENS, seed=1
        )
        with client.chat.completions.stream(
            model="story", messages=MESSAGES, response_format=Animal, max_tokens=MAX_TOKENS, seed=1
        ) as stream:
            streamed = stream.get_final_completion()
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Animal) and answer.choices[0].finish_reason == "stop"
    assert streamed.choices[0].message.parsed == parsed
