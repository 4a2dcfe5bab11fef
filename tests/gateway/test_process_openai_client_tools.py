"""The public `openai` client calls tools: whole answers, streams, and the state that it keeps of a stream."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("openai", reason="the package `openai` is not installed")

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall

from tests.gateway.tool_answers import ARGUMENTS, TOOLS, serving

MESSAGES: Final[list[Any]] = [{"role": "user", "content": "Hi"}]
CALLS: Final = [("add", json.loads(ARGUMENTS[0])), ("look_up", json.loads(ARGUMENTS[1]))]


def calls_of(answer: ChatCompletion) -> list[tuple[str, Any]]:
    """The calls of the first choice. The answer has all else that belongs to them."""
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Well.")
    assert choice.message.model_extra is not None and choice.message.model_extra["reasoning_content"] == "I add."
    calls = []
    for call in choice.message.tool_calls or ():
        assert isinstance(call, ChatCompletionMessageFunctionToolCall) and call.id.startswith("call_")
        calls.append((call.function.name, json.loads(call.function.arguments)))
    return calls


def loop_of_an_agent(client: openai.OpenAI) -> None:
    """Asks, runs both calls, tells the results, asks again."""
    tools: Any = TOOLS
    answer = client.chat.completions.create(model="story", messages=MESSAGES, tools=tools)
    assert calls_of(answer) == CALLS
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("\nI add.\n")

    said = answer.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in said.tool_calls or ()]
    messages: Any = [*MESSAGES, said.model_dump(exclude_none=True), *results]
    again = client.chat.completions.create(model="story", messages=messages, tools=tools)
    assert calls_of(again) == CALLS
    assert again.usage is not None and again.usage.prompt_tokens > answer.usage.prompt_tokens


def streamed(client: openai.OpenAI) -> ChatCompletion:
    """What the client's own state makes of a stream."""
    tools: Any = TOOLS
    chunks = client.chat.completions.create(
        model="story", messages=MESSAGES, tools=tools, stream=True, stream_options={"include_usage": True}
    )
    state = ChatCompletionStreamState[None]()
    for chunk in chunks:
        state.handle_chunk(chunk)
    return state.get_final_completion()


async def test_the_loop_of_an_agent(tmp_path: Path) -> None:
    async with serving(tmp_path) as setting:
        url = setting.gateway.url + "/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            await asyncio.to_thread(loop_of_an_agent, client)
            assert len(setting.workers[0].assigned) == 2


@pytest.mark.parametrize("burst", [1, 50])
async def test_a_stream_is_gathered_by_the_client(tmp_path: Path, burst: int) -> None:
    async with serving(tmp_path, burst=burst) as setting:
        url = setting.gateway.url + "/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            answer = await asyncio.to_thread(streamed, client)
    assert calls_of(answer) == CALLS
    assert answer.usage is not None and answer.usage.completion_tokens > 0
