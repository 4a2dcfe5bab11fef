"""/tokenize and /detokenize over HTTP, beside what a request of the same prompt has."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.generation import translate
from tests.gateway.conftest import running

STORY = Path(__file__).resolve().parents[4] / "models/story"
MESSAGES = [{"role": "user", "content": "Tell me <|im_end|> caf\u00e9 \U0001f600"}]


async def test_the_tokens_are_those_of_a_request_and_their_text_is_the_prompt() -> None:
    async with running(STORY) as setting:
        post = setting.client.post
        for body, path in (
            ({"prompt": "Once upon \u00e9 <|im_end|>"}, "/v1/completions"),
            ({"messages": MESSAGES}, "/v1/chat/completions"),
        ):
            told = (await post("/tokenize", json=body | {"return_token_strs": True})).json()
            assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) and told["max_model_len"] == 2048
            refused = (await post(path, json=body | {"max_tokens": 2048})).json()["error"]
            assert f" has {told['count']} tokens" in refused["message"], path

            text = (await post("/detokenize", json={"tokens": told["tokens"]})).json()["prompt"]
            assert text == body.get("prompt") or "Tell me <|im_end|> caf\u00e9 \U0001f600<|im_end|>" in text
        assert (await post("/tokenize", json={"prompt": "a"})).json()["token_strs"] is None


async def test_more_than_the_context_is_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(STORY) as setting:
        long = await setting.client.post("/tokenize", json={"prompt": "fox " * 10_000})
        assert long.json()["count"] > 2048
        monkeypatch.setattr(translate, "MAX_TOLD_IDS", 5000)
        refused = await setting.client.post("/tokenize", json={"prompt": "fox " * 10_000})
        assert refused.status_code == 400 and "more than 5000 tokens" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "fox " * 5000}),
        ("/detokenize", {"tokens": [70] * 4000}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
async def test_much_work_is_done_in_a_thread(monkeypatch: pytest.MonkeyPatch, path: str, body: Any) -> None:
    in_threads, real = list[Any](), asyncio.to_thread

    async def noted(work: Any, *arguments: Any) -> Any:
        in_threads.append(work)
        return await real(work, *arguments)

    async with running(STORY) as setting:
        monkeypatch.setattr(asyncio, "to_thread", noted)
        answer = await setting.client.post(path, json=body)
    assert answer.status_code == 200 and bool(in_threads) == (body != {"prompt": "a"})
    assert setting.gateway.service.admission.num_bytes == 0


async def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 100}')
    async with running(tmp_path) as setting:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            answer = await setting.client.post(path, json=body)
            assert answer.status_code == 400 and "has no tokenizer" in answer.json()["error"]["message"]
