import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.generation.translate import Translator
from gateway.serving.respond import ECHO_WORK, LONG_BODY_BYTES, work_of
from gateway.text.text_lengths import MAX_GROWTH
from gateway.words.request import Ask, PromptText
from tests.gateway.conftest import Setting


def asks(echo: bool = False) -> list[Ask]:
    return [Ask([PromptText("a")], echo=echo)]


@pytest.mark.parametrize(
    ("raw", "growth", "times"),
    [
        (b"a" * 1000, MAX_GROWTH, 1),
        ("é".encode() * 500, MAX_GROWTH, MAX_GROWTH),
        (b"\\ufdfa" + b"a" * 994, MAX_GROWTH, MAX_GROWTH),
        ("é".encode() * 500, 1, 1),
    ],
)
def test_a_body_counts_as_long_as_the_tokenizer_may_make_it(raw: bytes, growth: int, times: int) -> None:
    assert work_of(raw, asks(), growth) == 1000 * times
    assert work_of(raw, asks(echo=True), growth) == 1000 * max(times, ECHO_WORK)


@pytest.mark.parametrize(
    ("fields", "num_apart"),
    [
        ({"prompt": "a" * 1000}, 0),
        ({"prompt": "é" * 1000}, 1),
        ({"prompt": [5] * 400, "user": "y" * 2000}, 0),
        ({"prompt": [5] * 400, "user": "y" * 2000, "echo": True}, 1),
        ({"prompt": "a" * LONG_BODY_BYTES}, 2),
    ],
)
async def test_what_takes_long_is_tokenised_in_a_thread_and_a_long_body_is_parsed_in_one(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], num_apart: int
) -> None:
    await setting.add_pair()
    apart, to_thread = list[str](), asyncio.to_thread

    async def noted(act: Callable[..., Any], *given: Any) -> Any:
        apart.append(getattr(act, "__name__", ""))
        return await to_thread(act, *given)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    monkeypatch.setattr(Translator, "growth", MAX_GROWTH)
    await setting.client.post("/v1/completions", json={**fields, "max_tokens": 1})
    assert len(apart) == num_apart and ("all_prompts" in apart) is (num_apart > 0)
