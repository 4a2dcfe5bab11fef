"""Answers that begin with their prompt, or tell its log-probabilities, from workers that are late or lost."""

from typing import Any

import pytest

from gateway.dialects.openai import write as openai_answer
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, chunks_of

TEXT = "xyz!"
SCORED: dict[str, Any] = {"max_tokens": 5, "echo": True, "logprobs": 2}


TOPS = [{chr(ord(char) + 1): -place + 0.5, char: -float(place)} for place, char in enumerate(TEXT)]
OF_PROMPT: dict[str, list[Any]] = {  # what `logprobs` tells of the prompt; see prompt_scores
    "tokens": list(TEXT),
    "token_logprobs": [None, -1.0, -2.0, -3.0],
    "top_logprobs": [None, *TOPS[1:]],
    "text_offset": [0, 1, 2, 3],
}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_long", [False, True])
async def test_a_stream_begins_with_the_prompt(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, is_late: bool, is_long: bool
) -> None:
    if is_long:
        monkeypatch.setattr(openai_answer, "LONG_BATCH", 2)
    await setting.add_pair(Behaviour(prompt_late=is_late))
    [whole] = (await setting.complete(TEXT, **SCORED)).json()["choices"]
    chunks = chunks_of((await setting.complete(TEXT, stream=True, **SCORED)).text)
    parts = [each for chunk in chunks for each in chunk["choices"]]
    assert (parts[0]["text"], parts[0]["logprobs"]) == (TEXT, OF_PROMPT)
    assert "".join(part["text"] for part in parts) == whole["text"] and parts[-1]["finish_reason"] == "length"
    for name in OF_PROMPT:
        assert [each for part in parts for each in part["logprobs"][name]] == whole["logprobs"][name]


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(prompt_late=True, burst=2), Behaviour(prompt_late=True, twice=True), Behaviour(first_token_late=True)],
    ids=["late", "late and twice", "first token late"],
)
async def test_the_answer_waits_for_its_prompt(setting: Setting, behaviour: Behaviour) -> None:
    await setting.add_pair()
    [right] = (await setting.complete(TEXT, n=1, **SCORED)).json()["choices"]
    setting.workers[1].behaviour = behaviour
    for choice in (await setting.complete(TEXT, n=2, **SCORED)).json()["choices"]:
        assert choice["logprobs"]["token_logprobs"] == right["logprobs"]["token_logprobs"]
        assert choice["text"][:4] == TEXT and choice["finish_reason"] == "length"
