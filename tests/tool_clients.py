"""`python -m tests.tool_clients`: other projects' agents call tools of a gateway, unchanged.

It runs by hand, after `pip install openai langchain-openai openai-agents`: of these, Baton's tests have the first. A
fake worker answers each question with two calls, and their results with a sentence. Status 0 means that both were run.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import SecretStr

from protocol.messages_gateway import Assign
from tests.gateway.tool_answers import Script, serving

CALL: Final = '<tool_call>\n{"name": "add", "arguments": {"a": %d, "b": 4}}\n</tool_call>'
CALLS: Final = f"<think>\nI add.\n</think>\n\nWell.\n{CALL % 17}\n{CALL % 1}"
LAST: Final = "It is 21."
RESULT: Final = b"<|im_start|>tool"
PAIRS: Final = [(17, 4), (1, 4)]
Check = Callable[[], bool]


def says(assign: Assign, choice: int) -> Iterable[int]:
    """What the model says: calls, until it has their results."""
    prompt = bytes(token_id for token_id in assign.prompt_ids if token_id < 256)
    return Script((LAST if RESULT in prompt else CALLS,))(assign, choice)


def of_langchain(url: str) -> dict[str, Check]:
    """`bind_tools`."""

    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    chat = ChatOpenAI(model="story", base_url=url, api_key=SecretStr("none")).bind_tools([tool(add)])

    def is_called(said: Any) -> bool:
        called = [(call["args"]["a"], call["args"]["b"]) for call in said.tool_calls]
        results = [ToolMessage("21", tool_call_id=call["id"]) for call in said.tool_calls]
        return called == PAIRS and chat.invoke([HumanMessage("17 + 4?"), said, *results]).content == LAST

    def of_stream() -> Any:
        first, *others = chat.stream("17 + 4?")
        return sum(others, first)

    return {
        "langchain: invoke": lambda: is_called(chat.invoke("17 + 4?")),
        "langchain: stream": lambda: is_called(of_stream()),
    }


def of_agents(url: str) -> dict[str, Check]:
    """`Runner`, with a tool that is not strict."""
    called: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        """Adds."""
        called.append((a, b))
        return a + b

    async def run(*, stream: bool) -> bool:
        called.clear()
        model = OpenAIChatCompletionsModel(model="story", openai_client=AsyncOpenAI(base_url=url, api_key="none"))
        agent = Agent(name="adder", instructions="Add.", model=model, tools=[function_tool(add, strict_mode=False)])
        if stream:
            result: Any = Runner.run_streamed(agent, "17 + 4?")
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, "17 + 4?")
        return called == PAIRS and result.final_output == LAST

    return {
        "openai-agents: run": lambda: asyncio.run(run(stream=False)),
        "openai-agents: run_streamed": lambda: asyncio.run(run(stream=True)),
    }


def checked(url: str) -> bool:
    """Runs all, and tells of each."""
    set_tracing_disabled(True)
    is_right = True
    for name, check in (of_langchain(url) | of_agents(url)).items():
        outcome = check()
        is_right = is_right and outcome
        sys.stdout.write(f"{name}: {'served' if outcome else 'WRONG'}\n")
    return is_right


async def main() -> int:
    """Serves, and lets the clients ask. Returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), script=says) as setting:
            return 0 if await asyncio.to_thread(checked, setting.gateway.url + "/v1") else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
