"""Log-probabilities of prompts in SGLang's native answers."""

from typing import Any

import httpx
import pytest

from protocol.logprobs import PromptLogprobsAsked
from testkit.fake_worker import prompt_scores
from tests.gateway.conftest import Setting, events


async def generate(setting: Setting, **body: Any) -> httpx.Response:
    await setting.add_pair()
    return await setting.client.post("/generate", json=body)


def scored_prompt(ids: list[int], start: int, num_top: int) -> dict[str, list[Any]]:
    """What `meta_info` tells of a prompt; see prompt_scores in fake_worker.py."""
    tokens: list[Any] = [[None, ids[start], None]]
    tops: list[Any] = [None]
    asked = PromptLogprobsAsked(num_top, start + 1)
    for token_id, scored in zip(ids[start + 1 :], prompt_scores(ids[start + 1 :], start + 1, asked), strict=True):
        tokens.append([scored.logprob, token_id, None])
        tops.append([[logprob, top_id, None] for top_id, logprob in scored.top])
    return {"input_token_logprobs": tokens, "input_top_logprobs": tops}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("start", [0, 1, 3])
async def test_log_probabilities_of_the_prompt(setting: Setting, start: int, stream: bool) -> None:
    ids = [120, 121, 122, 33]
    body = {"input_ids": ids, "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": start}
    response = await generate(setting, **body, stream=stream, sampling_params={"max_new_tokens": 3})
    for answer in events(response.text)[:-1] if stream else [response.json()]:
        meta = answer["meta_info"]
        told = {name: meta[name] for name in ("input_token_logprobs", "input_top_logprobs")}
        assert told == scored_prompt(ids, start, 2)
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]


async def test_each_prompt_is_told_from_its_own_token_on_and_none_without_asking(setting: Setting) -> None:
    prompts = [[120, 121, 122], [97, 98], [99, 100]]
    more = {"return_logprob": [True, True, False], "logprob_start_len": [1, -1, 0]}
    response = await generate(setting, input_ids=prompts, sampling_params={"max_new_tokens": 2}, **more)
    first, second, third = (each["meta_info"] for each in response.json())
    assert first["input_token_logprobs"] == scored_prompt(prompts[0], 1, 0)["input_token_logprobs"]
    assert second["input_token_logprobs"] == [] and "input_token_logprobs" not in third


async def test_a_prompt_is_scored_without_an_answer(setting: Setting) -> None:
    body = {"input_ids": [120, 121], "return_logprob": True, "logprob_start_len": 0}
    answer = (await generate(setting, **body, sampling_params={"max_new_tokens": 0})).json()
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert answer["meta_info"]["completion_tokens"] == 0 and answer["meta_info"]["output_token_logprobs"] == []
    assert len(answer["meta_info"]["input_token_logprobs"]) == 2


async def test_a_start_beyond_the_prompt_is_refused(setting: Setting) -> None:
    body = {"input_ids": [[1], [2, 3]], "return_logprob": True, "logprob_start_len": [0, 2]}
    response = await generate(setting, **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "logprob_start_len")
    assert error["message"] == "logprob_start_len: got 2, expected less than the 2 tokens of input_ids[1]"
