"""openai-agents on chat completions: runs, streams, strict tools, forced calls, hand-offs, typed output."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

QUESTION = "What is the weather in 'Oslo', and its population?"
BOTH = [("get_weather", "Oslo"), ("get_population", "Oslo")]
Check = Callable[[], Awaitable[None]]


class Weather(BaseModel):
    """What a typed agent answers."""

    city: str
    celsius: float


def model() -> OpenAIChatCompletionsModel:
    """The model of the server."""
    client = AsyncOpenAI(base_url=os.environ["TOOL_CLIENTS_URL"], api_key="none", max_retries=0)
    return OpenAIChatCompletionsModel(model=os.environ["TOOL_CLIENTS_MODEL"], openai_client=client)


def tools(called: list[tuple[str, str]], *, strict: bool) -> list[FunctionTool]:
    """Two tools that note with what they were called."""

    def get_weather(city: str) -> str:
        """Knows it."""
        called.append(("get_weather", city))
        return "12 degrees"

    def get_population(city: str) -> str:
        """Knows it."""
        called.append(("get_population", city))
        return "700000"

    return [function_tool(tool, strict_mode=strict) for tool in (get_weather, get_population)]


async def both_are_called(*, stream: bool = False, strict: bool = False, **settings: Any) -> None:
    """A whole run: both tools are called, then the agent says something."""
    called: list[tuple[str, str]] = []
    own = ModelSettings(include_usage=True, **settings)
    agent = Agent("asker", model=model(), instructions="Ask.", tools=tools(called, strict=strict), model_settings=own)
    if stream:
        result: Any = Runner.run_streamed(agent, QUESTION)
        names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
        assert names.count("tool_called") == names.count("tool_output") == len(BOTH), names
    else:
        result = await Runner.run(agent, QUESTION)
    assert called == BOTH, called
    assert result.final_output, result.final_output
    assert result.context_wrapper.usage.total_tokens > 0


async def one_call_is_forced() -> None:
    """`tool_choice` with a tool's name, for a question that asks for the other one."""
    called: list[tuple[str, str]] = []
    own = ModelSettings(tool_choice="get_population")
    agent = Agent("asker", model=model(), tools=tools(called, strict=False), model_settings=own)
    await Runner.run(agent, "What is the weather in 'Oslo'?")
    assert called[0] == BOTH[1], called


async def calls_are_made_one_by_one() -> None:
    """`parallel_tool_calls`: false."""
    called: list[tuple[str, str]] = []
    own = ModelSettings(parallel_tool_calls=False)
    agent = Agent("asker", model=model(), tools=tools(called, strict=False), model_settings=own)
    await Runner.run(agent, QUESTION)
    assert called == BOTH[:1], called


async def an_agent_hands_off() -> None:
    """The first agent calls the tool that the client makes of a hand-off."""
    second: Agent[None] = Agent("weather", model=model(), handoff_description="Knows the weather.")
    first: Agent[None] = Agent("front", model=model(), handoffs=[second])
    result = await Runner.run(first, "What is the weather in 'Oslo'?")
    assert result.last_agent is second, result.last_agent
    assert result.final_output


async def an_answer_is_typed() -> None:
    """`output_type`: a schema of the whole answer."""
    agent = Agent("typed", model=model(), output_type=Weather)
    result = await Runner.run(agent, "What is it like in Oslo?")
    assert isinstance(result.final_output, Weather), result.final_output


async def run(cases: dict[str, Check]) -> None:
    """Prints a line of JSON for each case."""
    for name, check in cases.items():
        outcome, reason = "passed", ""
        try:
            await check()
        except Exception as error:  # noqa: BLE001 - of another project's client
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps({"name": name, "outcome": outcome, "reason": reason}) + "\n")


set_tracing_disabled(True)
asyncio.run(
    run(
        {
            "run": both_are_called,
            "run_streamed": lambda: both_are_called(stream=True),
            "run, strict tools": lambda: both_are_called(strict=True),
            "run_streamed, strict tools": lambda: both_are_called(stream=True, strict=True),
            "tool_choice: required": lambda: both_are_called(tool_choice="required"),
            "tool_choice: a tool's name": one_call_is_forced,
            "parallel_tool_calls: false": calls_are_made_one_by_one,
            "hand-off": an_agent_hands_off,
            "output_type": an_answer_is_typed,
        }
    )
)
