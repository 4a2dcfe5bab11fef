"""A conversation with many tools at its second turn: the share of its prompt that is cached, and its TTFT.

A pair serves the bundled model. Each conversation has a cache of its own. Its first turn calls tools, because it must;
the second one has the results. Then the same second turn comes again, where nothing is cached.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.gateway.long_context import long_context
from bench.gateway.tool_text import QUESTION, Message, gathered, tools, with_results
from bench.rounds import spread
from bench.sheet import Sheet
from bench.side import Answer, Side, baton_sides
from loadtest.deployment import PAIR
from runtime.clock import MonotonicClock

CONTEXT_LENGTH: Final = 16384  # fifty tools have more tokens than the bundled model's context
CALL_TOKENS, ANSWER_TOKENS = 100, 16  # at most, of the first turn and of the second
SHARE: Final = "cached share"
TARGET_SHARE: Final = 0.95
ABOUT: Final = (
    "TTFT in ms; medians of conversations, and their range. *again*: the second turn where nothing is cached."
)


@dataclass(frozen=True)
class TurnsLoad:
    """So many conversations, one after another, each with `num_tools` tools."""

    model: str
    template: str
    conversations: int
    num_tools: int


async def measure_second_turns(load: TurnsLoad, sheet: Sheet) -> None:
    """Writes one row, and the goal of the cached share, which is that of the worst conversation."""
    with long_context(Path(load.model), CONTEXT_LENGTH) as folder:
        serve = (*PAIR, "--model", str(folder), "--chat-template", load.template)
        async with baton_sides({"pair": serve}, MonotonicClock()) as [side]:
            await _turns(side, load, "warm-up")
            turns = [await _turns(side, load, f"conversation {index}") for index in range(load.conversations)]

    shares = [second.num_cached / second.num_prompt for _, second, _ in turns]
    ttfts = [[answer.arrivals[0] * 1e3 for answer in of_turn] for of_turn in zip(*turns, strict=True)]
    cells = dict(zip(("TTFT first", "TTFT second", "TTFT again"), map(spread, ttfts), strict=True))
    prompts = {"prompt tokens": median(second.num_prompt for _, second, _ in turns)}
    title = f"The second turn of a conversation with {load.num_tools} tools, a pair"
    sheet.row(title, {"conversations": load.conversations, **prompts, SHARE: spread(shares), **cells}, ABOUT)
    sheet.goal(SHARE, min(shares), "at least", TARGET_SHARE)


async def _turns(side: Side, load: TurnsLoad, name: str) -> tuple[Answer, Answer, Answer]:
    """The first turn, the second one, and the second one with another cache. `name` is that of the cache."""
    messages: list[Message] = [{"role": "user", "content": QUESTION}]
    asked: dict[str, Any] = {"tools": tools(load.num_tools), "ignore_eos": False, "cache_salt": name}

    first = await side.chat(messages, CALL_TOKENS, tool_choice="required", parallel_tool_calls=False, **asked)
    messages = with_results(messages, gathered(first.deltas))
    assert messages[-1]["role"] == "tool", "the first turn has called a tool"
    second = await side.chat(messages, ANSWER_TOKENS, tool_choice="none", **asked)
    again = await side.chat(messages, ANSWER_TOKENS, tool_choice="none", **(asked | {"cache_salt": f"{name}, again"}))
    assert (first.num_cached, again.num_cached) == (0, 0), "salts keep conversations apart"
    return first, second, again
