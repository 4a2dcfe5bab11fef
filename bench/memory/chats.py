"""Six chats without `max_tokens` in a pool of 2,048 tokens: how many decode at the same time.

Each may take the whole pool. The bundled model ends its answers by itself.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.memory.figures import Goal, show_goals, show_rows
from bench.memory.part import Setting
from bench.memory.side import Answer, Side, baton_sides
from loadtest.scenarios import PAIR, UNIFIED

POOL_TOKENS = 2048
SERVE = ("--max-total-tokens", str(POOL_TOKENS))
ABOUT = ("a dog and a red ball", "a girl who baked bread", "a fox in the snow", "two friends and a boat",
         "a bird that could not sing", "an old man and his garden")  # fmt: skip


async def measure(setting: Setting) -> dict[str, Any]:
    """Prints the table. Returns the same as JSON."""
    rows = []
    async with baton_sides({"pair": (*PAIR, *SERVE), "unified": (*UNIFIED, *SERVE)}, setting.clock) as sides:
        for side in sides:
            await six_chats(side)  # warms up
            before = await side.num_retracted()
            answers = await six_chats(side)
            gave_way = int(await side.num_retracted() - before)
            rows.append(row_of(side.name, answers, gave_way))

    show_rows(setting.console, f"six chats without max_tokens in {POOL_TOKENS} tokens", rows, setting.markdown)
    least = min(row["at once"] for row in rows)
    goals = [Goal("chats that decode at the same time", least, "at least", 4)]
    return {"rows": rows, "goals": show_goals(setting.console, goals)}


async def six_chats(side: Side) -> list[Answer]:
    """All six at the same time."""
    texts = [f"Please tell me a long story of {about}. Begin with the morning of that day." for about in ABOUT]
    fields = {"temperature": 0.7, "seed": 15, "return_token_ids": True}
    return list(await asyncio.gather(*(side.chat(text, **fields) for text in texts)))


def row_of(name: str, answers: Sequence[Answer], gave_way: int) -> dict[str, Any]:
    """The figures of one side."""
    outputs = [answer.num_tokens for answer in answers]
    return {
        "side": name,
        "at once": most_at_once([decoding_span(answer) for answer in answers]),
        "gave way": gave_way,
        "outputs": f"{min(outputs)}-{max(outputs)}",
        "longest TTFT ms": round(max(answer.arrivals[0] for answer in answers) * 1e3, 1),
    }


def decoding_span(answer: Answer) -> tuple[float, float]:
    """From the first token, which is prefill's, to the last one."""
    return answer.sent_at + answer.arrivals[0], answer.sent_at + answer.arrivals[-1]


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The greatest number of spans [start, end) that hold one moment."""
    return max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
