import json
from typing import Any

import pytest

from protocol.messages_gateway import Role
from tests.gateway.conftest import Setting
from tests.gateway.fake_worker import Behaviour


def expected_text(prompt_ids: list[int], num_tokens: int, choice: int = 0) -> str:
    start = sum(prompt_ids) + 7 * choice
    return "".join(chr(65 + (start + 5 * place) % 26) for place in range(num_tokens))


async def test_completion(setting: Setting) -> None:
    await setting.add_pair()
    response = await setting.complete([1, 2, 3], max_tokens=5, return_token_ids=True)
    assert response.status_code == 200, response.text
    body = response.json()
    [choice] = body["choices"]
    assert choice["text"] == expected_text([1, 2, 3], 5)
    assert choice["token_ids"] == list(choice["text"].encode())
    assert choice["finish_reason"] == "length"
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert body["model"] == "story" and body["object"] == "text_completion"


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(twice=True),
        Behaviour(reverse=True),
        Behaviour(first_token_late=True),
        Behaviour(burst=3),
        Behaviour(burst=3, twice=True, reverse=True),
    ],
    ids=["twice", "reverse", "first-late", "burst", "all"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_token_once_and_in_order(setting: Setting, behaviour: Behaviour, stream: bool) -> None:
    await setting.add_pair(behaviour)
    fields: dict[str, Any] = {"max_tokens": 12, "n": 3, "stream": stream, "return_token_ids": True}
    response = await setting.complete([[9], [4, 4]], **fields)
    texts = texts_of_stream(response.text) if stream else [each["text"] for each in response.json()["choices"]]
    assert texts == [expected_text(prompt, 12, choice) for prompt in ([9], [4, 4]) for choice in range(3)]


def texts_of_stream(content: str) -> list[str]:
    lines = [line for line in content.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    texts: dict[int, str] = {}
    for line in lines[:-1]:
        chunk = json.loads(line.removeprefix("data: "))
        [choice] = chunk["choices"]
        assert len(choice["token_ids"]) == 1
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return [texts[index] for index in sorted(texts)]


async def test_unified_worker(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED)
    response = await setting.complete([7], max_tokens=3)
    assert response.json()["choices"][0]["text"] == expected_text([7], 3)
    assert worker.assigned[0].prefill is None
