"""What calls of tools cost the gateway: CPU of a token of streams with calls, beside streams of text, in turns.

All streams run at once. CPU counts from the moment at which each has begun, so no prompt is in it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from bench.gateway.fake_pair import FakePair
from bench.gateway.lone_gateway import cpu_seconds, gateway_process, metrics_of
from bench.gateway.tool_text import QUESTION, call_text, tools
from bench.rounds import compared, in_rounds, spread
from bench.sheet import Sheet
from bench.side import Answer
from protocol.messages_gateway import Assign
from runtime.clock import MonotonicClock

WORDS: Final = "once upon a time there was a little girl who lived in a village by the forest, and she had 3 cats. "
TEXT, BESIDE, CALLS = "text", "text, tools in the prompt", "calls"
CPU: Final = "CPU us a token"
TURNS: Final = 5  # tried for one figure
TABLE: Final = "Streams with calls of tools beside streams of text"
ABOUT: Final = f"*ratio*: to *{TEXT}* of the same round. Medians of rounds, and their range."


@dataclass(frozen=True)
class ToolLoad:
    """So many `streams` of chats, each of `output_tokens`, a token every `step_s`."""

    model: str
    template: str
    vocab_size: int
    streams: int
    output_tokens: int
    step_s: float


def measure_tool_tokens(load: ToolLoad, rounds: int, sheet: Sheet) -> None:
    """Writes a row for each kind of answer. Each turn has a gateway of its own."""
    text, calls = token_ids(load, [WORDS]), token_ids(load, [call_text(index) for index in range(8)])
    sides: Mapping[str, tuple[Sequence[int], int]] = {TEXT: (text, 0), BESIDE: (text, 2), CALLS: (calls, 2)}

    def turn(name: str) -> Callable[[], float]:
        said, num_tools = sides[name]
        return lambda: until_measured(lambda: asyncio.run(_cpu_us(load, said, num_tools, with_calls=name == CALLS)))

    figures = in_rounds({name: turn(name) for name in sides}, rounds)
    for name, values in figures.items():
        cells = {"answers": name, "streams": load.streams, CPU: spread(values), **compared(values, figures[TEXT])}
        sheet.row(TABLE, cells, ABOUT)


def until_measured(turn: Callable[[], float | None]) -> float:
    """The figure of the first turn that has one: on a busy machine, streams may be over before they are measured."""
    for _ in range(TURNS):
        if (figure := turn()) is not None:
            return figure
    raise RuntimeError(f"in {TURNS} turns all streams were over before the measurement began: give --tool-out more")


def token_ids(load: ToolLoad, texts: Sequence[str]) -> list[int]:
    """The tokens of one answer: these texts again and again."""
    tokenizer = Tokenizer.from_file(str(Path(load.model) / "tokenizer.json"))
    said = [token_id for text in texts for token_id in tokenizer.encode(text, add_special_tokens=False).ids]
    return (said * (load.output_tokens // len(said) + 1))[: load.output_tokens]


async def _cpu_us(load: ToolLoad, said: Sequence[int], num_tools: int, *, with_calls: bool) -> float | None:
    """Microseconds of all threads of a gateway for a token; None: the streams were over too early."""
    clock, all_run, num_running = MonotonicClock(), asyncio.Event(), 0

    def script(_assign: Assign, _choice: int) -> Iterator[int]:
        return iter(said)

    def one_runs() -> None:
        nonlocal num_running
        num_running += 1
        if num_running == load.streams:
            all_run.set()

    own: dict[str, Any] = {"tools": tools(num_tools)} if num_tools else {}
    messages = [{"role": "user", "content": QUESTION}]
    async with (
        gateway_process(load.model, clock, chat_template=load.template) as (side, control, pid),
        FakePair(control, clock, load.step_s, load.vocab_size, script),
        asyncio.TaskGroup() as tasks,
    ):
        ask = [side.chat(messages, load.output_tokens, one_runs, **own) for _ in range(load.streams)]
        running = [tasks.create_task(asked) for asked in ask]
        await all_run.wait()
        cpu_s, before = cpu_seconds(pid), await metrics_of(side)
        answers = await asyncio.gather(*running)
        cpu_s, after = cpu_seconds(pid) - cpu_s, await metrics_of(side)

    for answer in answers:
        _check(answer, load.output_tokens, with_calls=with_calls)
    name = "baton_generation_tokens_total"
    num_tokens = after[name] - before[name]
    return cpu_s / num_tokens * 1e6 if num_tokens else None


def _check(answer: Answer, num_tokens: int, *, with_calls: bool) -> None:
    """The stream was whole, and calls came as calls."""
    num_calls = sum("tool_calls" in delta for delta in answer.deltas)
    assert answer.num_tokens == num_tokens, f"{answer.num_tokens} of {num_tokens} tokens came"
    assert bool(num_calls) == with_calls, f"{num_calls} pieces of calls came"
