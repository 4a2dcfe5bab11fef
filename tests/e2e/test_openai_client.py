"""The `openai` Python client against `baton serve` with the bundled model: what users' programs do."""

import asyncio

import pytest

pytest.importorskip("openai", reason="the package `openai` is not installed")

import openai
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.baton_process import PATIENCE_S, BatonProcess

pytestmark = pytest.mark.slow
PROMPT = "Once upon a time"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story about a fox."}]


def client(baton: BatonProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=baton.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def async_client(baton: BatonProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=baton.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def test_completions(story: BatonProcess) -> None:
    with client(story) as it:
        whole = it.completions.create(model="story", prompt=PROMPT, max_tokens=30, temperature=0)
        parts = list(it.completions.create(model="story", prompt=PROMPT, max_tokens=30, temperature=0, stream=True))
    assert whole.object == "text_completion"
    assert (whole.model, whole.choices[0].finish_reason) == ("story", "length")
    assert len(whole.choices[0].text) > 30
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 30
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 30
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts][-1] == "length"
    assert len({part.id for part in parts}) == 1


def test_chat(story: BatonProcess) -> None:
    with client(story) as it:
        whole = it.chat.completions.create(model="story", messages=MESSAGES, max_completion_tokens=200, temperature=0)
        stream = it.chat.completions.create(
            model="story",
            messages=MESSAGES,
            max_completion_tokens=200,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        *parts, last = stream
    answer = whole.choices[0].message
    assert answer.role == "assistant"
    assert answer.content is not None
    assert "fox" in answer.content.lower()
    assert whole.choices[0].finish_reason == "stop"
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == answer.content
    assert parts[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage is not None and whole.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens
    details = last.usage.prompt_tokens_details
    assert details is not None and details.cached_tokens == 16, "a page of the prompt that was asked before"


def test_choices_and_prompts(story: BatonProcess) -> None:
    prompts = [PROMPT, "2 + 2 ="]
    with client(story) as it:
        asked = {"model": "story", "max_tokens": 12, "temperature": 1.0, "seed": 7}
        answer = it.completions.create(**asked, prompt=prompts, n=2)  # type: ignore[call-overload]
        again = it.completions.create(**asked, prompt=prompts, n=2)  # type: ignore[call-overload]
        first = it.completions.create(**asked, prompt=PROMPT)  # type: ignore[call-overload]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text != answer.choices[1].text
    assert [choice.text for choice in answer.choices] == [choice.text for choice in again.choices]
    assert answer.choices[0].text == first.choices[0].text
    assert answer.usage.completion_tokens <= 4 * 12


@pytest.mark.parametrize("stream", [True, False])
def test_stop_strings(story: BatonProcess, stream: bool) -> None:
    """Text up to the stop string, which may lie across tokens, and nothing of it."""
    with client(story) as it:
        full = it.completions.create(model="story", prompt=PROMPT, max_tokens=40, temperature=0).choices[0].text
        stop = full[21:26]
        if stream:
            parts = it.completions.create(
                model="story", prompt=PROMPT, max_tokens=40, temperature=0, stop=[stop], stream=True
            )
            choices = [part.choices[0] for part in parts]
            text, finish = "".join(choice.text for choice in choices), choices[-1].finish_reason
        else:
            asked = it.completions.create(model="story", prompt=PROMPT, max_tokens=40, temperature=0, stop=stop)
            text, finish = asked.choices[0].text, asked.choices[0].finish_reason
    assert (text, finish) == (full[: full.index(stop)], "stop")
    assert story.wait_for_rest(), "what the stop string ended is given back"


def test_async_requests_side_by_side(story: BatonProcess) -> None:
    async def ask() -> list[str]:
        async with async_client(story) as it:

            async def one(index: int) -> str:
                text = ""
                stream = await it.completions.create(
                    model="story", prompt=PROMPT, max_tokens=20, temperature=1.0, seed=index % 4, stream=True
                )
                async for part in stream:
                    text += part.choices[0].text
                return text

            return list(await asyncio.gather(*map(one, range(16))))

    texts = asyncio.run(ask())
    assert texts == texts[:4] * 4
    assert len(set(texts[:4])) == 4


def test_a_stream_that_is_broken_off(story: BatonProcess) -> None:
    with client(story) as it:
        stream = it.completions.create(model="story", prompt=PROMPT, max_tokens=1000, stream=True)
        next(iter(stream))
        stream.close()
    assert story.wait_for_rest(), story.workers()
