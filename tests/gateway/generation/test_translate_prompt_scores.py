"""The bound on log-probabilities of prompts counts what an answer tells: each list as often as it is there."""

import random
import re
from typing import Any

import pytest

from gateway.generation import translate
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, events

FOUND = re.compile(r"(\w+): the answer would tell (\d+) log-probabilities of prompts, expected at most (\d+)")
SCORE_BYTES = 75  # as docs/http.md has it, for ids and texts of a few characters
FRAME_BYTES = 1500  # of a choice, beside these


def draw(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A request that asks for log-probabilities of its prompts: the path and the body."""
    prompts = [[rng.randrange(30, 250) for _ in range(rng.randint(2, 40))] for _ in range(rng.randint(1, 3))]
    n, top, new = rng.randint(1, 4), rng.randint(0, 20), rng.randint(1, 2)
    kind = rng.choice(("prompt_logprobs", "echo", "both", "chat", "native"))
    if kind == "native":
        sampling = {"n": n, "max_new_tokens": new}
        start = rng.randrange(min(map(len, prompts)))
        asked = {"return_logprob": True, "top_logprobs_num": top, "logprob_start_len": start}
        prompt: Any = prompts if rng.random() < 0.7 else prompts[0]
        return "/generate", {"input_ids": prompt, **asked, "sampling_params": sampling, "stream": rng.random() < 0.3}
    if kind == "chat":
        messages = [{"role": "user", "content": "x" * rng.randint(1, 40)}, {"role": "assistant", "content": "so"}]
        body = {"messages": messages, "n": n, "max_tokens": new, "prompt_logprobs": top, "echo": rng.random() < 0.5}
        return "/v1/chat/completions", body
    body = {"prompt": prompts, "n": n, "max_tokens": new}
    if kind != "echo":
        body["prompt_logprobs"] = top
    if kind != "prompt_logprobs":
        body |= {"echo": True, "logprobs": rng.randint(0, 20)}
    return "/v1/completions", body


def count(body: dict[str, Any], answer: Any) -> int:
    """Log-probabilities of prompts in an answer: each place of a list counts as one and the likeliest ones."""
    if isinstance(answer, list) or "meta_info" in answer:
        choices = answer if isinstance(answer, list) else [answer]
        each: int = 1 + body["top_logprobs_num"]
        return each * sum(len(choice["meta_info"]["input_token_logprobs"]) for choice in choices)
    lists = [answer, *answer["choices"]]
    found: int = sum(len(part.get("prompt_logprobs") or ()) * (1 + body.get("prompt_logprobs", 0)) for part in lists)
    if "messages" not in body and body.get("echo"):
        for choice in answer["choices"]:
            num_echoed = len(body["prompt"][choice["index"] // body["n"]])
            assert len(choice["logprobs"]["tokens"]) > num_echoed
            found += num_echoed * (1 + body["logprobs"])
    return found


async def test_the_bound_counts_what_is_written(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await setting.add_pair(Behaviour(burst=2))
    rng, kinds = random.Random(9), set[str]()
    for _ in range(120):
        path, body = draw(rng)
        monkeypatch.setattr(translate, "MAX_SCORES", 0)
        refusal = await setting.client.post(path, json=body)
        assert refusal.status_code == 400, refusal.text
        named = FOUND.match(refusal.json()["error"]["message"])
        assert named is not None and named[1] == refusal.json()["error"]["param"], refusal.text
        kinds.add(named[1] + path)
        most = int(named[2])

        monkeypatch.setattr(translate, "MAX_SCORES", most)
        response = await setting.client.post(path, json=body)
        assert response.status_code == 200, response.text
        if body.get("stream"):
            last = {event.get("index", 0): event for event in events(response.text)[:-1]}
            answer: Any = list(last.values())
            size = sum(len(str(event)) for event in answer)
        else:
            answer, size = response.json(), len(response.content)
        assert count(body, answer) == most, (path, body)
        num_choices = len(answer if isinstance(answer, list) else answer.get("choices", [answer]))
        assert size <= SCORE_BYTES * most + (FRAME_BYTES + 64 * 40) * num_choices

        monkeypatch.setattr(translate, "MAX_SCORES", most - 1)
        assert (await setting.client.post(path, json=body)).status_code == 400
    assert len(kinds) == 4, kinds


@pytest.mark.parametrize("n", [1, 3])
async def test_the_refusal_says_that_each_choice_has_a_list(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    await setting.add_pair()
    monkeypatch.setattr(translate, "MAX_SCORES", 5)
    error = (await setting.complete([40, 41], prompt_logprobs=3, n=n)).json()["error"]
    tail = "; each of 3 choices has its own list" if n == 3 else ""
    what = f"the answer would tell {8 * n} log-probabilities of prompts, expected at most 5{tail}"
    assert (error["param"], error["message"]) == ("prompt_logprobs", f"prompt_logprobs: {what}")


async def test_a_chat_has_one_list_for_all_choices(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await setting.add_pair()
    monkeypatch.setattr(translate, "MAX_SCORES", 60)
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 30, "prompt_logprobs": 1, "max_tokens": 1}
    answer = (await setting.client.post("/v1/chat/completions", json=body)).json()
    assert len(answer["choices"]) == 30 and 2 < len(answer["prompt_logprobs"]) <= 30
