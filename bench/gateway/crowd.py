"""Many streams beside long prompts: the longest gap between two tokens of a stream, the gateway's CPU and memory.

The long prompts begin when all streams have their first token. This process holds all streams and workers, so a gap may
be its own fault: how late its clock ticks is measured too.
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.gateway.fake_pair import CONTEXT_LENGTH, FakePair
from bench.gateway.lone_gateway import (
    Running,
    Streamed,
    complete,
    cpu_seconds,
    gateway_process,
    metrics_of,
    peak_memory_mb,
    stream,
)
from protocol.errors import ConfigError
from runtime.clock import Clock, MonotonicClock

TARGET_GAP_MS = 250.0
SHARE_BESIDE = 0.7  # part of the streams' time in which long prompts are sent
TICK_S = 0.005
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
WORDS = "once upon a time there was a little girl who lived in a village by the forest, and she had 3 cats. "


@dataclass(frozen=True)
class CrowdLoad:
    """Streams that run for `seconds`, a token every `step_s`; beside them prompts of these lengths, one at a time."""

    model: str
    vocab_size: int
    streams: int
    step_s: float
    seconds: float
    beside_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Crowd:
    """One row. `client_late_ms`: the greatest delay of the measuring process itself."""

    beside_bytes: int
    num_beside: int
    longest_gap_ms: float
    client_late_ms: float
    cpu_us_per_token: float
    peak_memory_mb: float


async def measure_crowd(load: CrowdLoad) -> list[Crowd]:
    """A row for the streams alone, then one for each length of the prompts beside them. One gateway serves all."""
    clock = MonotonicClock()
    with _long_context(Path(load.model)) as folder:
        async with (
            gateway_process(str(folder)) as gateway,
            FakePair(gateway.control, clock, load.step_s, load.vocab_size),
        ):
            return [await _row(load, gateway, clock, num_bytes) for num_bytes in (0, *load.beside_bytes)]


async def _row(load: CrowdLoad, gateway: Running, clock: Clock, num_bytes: int) -> Crowd:
    num_running, all_run = 0, asyncio.Event()

    def one_runs() -> None:
        nonlocal num_running
        num_running += 1
        if num_running == load.streams:
            all_run.set()

    async with asyncio.TaskGroup() as tasks:
        num_tokens = max(2, round(load.seconds / load.step_s))
        prompts = [[num_bytes % load.vocab_size, place % load.vocab_size, 1] for place in range(load.streams)]
        running = [tasks.create_task(stream(gateway.url, clock, prompt, num_tokens, one_runs)) for prompt in prompts]
        await all_run.wait()
        lateness = Lateness(clock)
        ticking = tasks.create_task(lateness.watch())

        begun, cpu_s, before = clock.now(), cpu_seconds(gateway.pid), await metrics_of(gateway.url)
        num_beside = await _prompts_beside(gateway.url, clock, num_bytes, begun + SHARE_BESIDE * load.seconds)
        ended, cpu_s, after = clock.now(), cpu_seconds(gateway.pid) - cpu_s, await metrics_of(gateway.url)
        ticking.cancel()

    name = "baton_generation_tokens_total"
    return Crowd(
        num_bytes,
        num_beside,
        longest_gap_s([each.result() for each in running], begun, ended) * 1e3,
        lateness.most_s * 1e3,
        cpu_s / max(1.0, after[name] - before[name]) * 1e6,
        peak_memory_mb(gateway.pid),
    )


async def _prompts_beside(url: str, clock: Clock, num_bytes: int, until: float) -> int:
    """Sends prompts one after another and returns their number. ConfigError for any answer but 200 and too long."""
    if not num_bytes:
        await asyncio.sleep(until - clock.now())
        return 0

    text = (WORDS * (num_bytes // len(WORDS) + 1))[:num_bytes]
    body, num_sent = json.dumps({"prompt": text, "max_tokens": 1}).encode(), 0
    while not num_sent or clock.now() < until:  # at least one, however slow the machine is
        status, answer = await complete(url, body)
        num_sent += 1
        if status != 200 and answer["error"]["code"] != "context_length_exceeded":
            raise ConfigError(f"a prompt of {num_bytes} bytes went wrong: {answer}")
    return num_sent


def longest_gap_s(streams: Iterable[Streamed], begun: float, ended: float) -> float:
    """The longest pause between two reads of one stream, of those that overlap [begun, ended)."""
    pauses = (pause for each in streams for pause in zip(each.token_times, each.token_times[1:], strict=False))
    return max((after - before for before, after in pauses if after > begun and before < ended), default=nan)


class Lateness:
    """How late this process wakes up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.most_s = 0.0

    async def watch(self) -> None:
        """Measures until it is cancelled."""
        while True:
            due = self._clock.now() + TICK_S
            await asyncio.sleep(TICK_S)
            self.most_s = max(self.most_s, self._clock.now() - due)


@contextmanager
def _long_context(model: Path) -> Iterator[Path]:
    """A folder with the model's tokenizer and the workers' context length."""
    with tempfile.TemporaryDirectory(prefix="baton-crowd-") as name:
        for each in TOKENIZER_FILES:
            shutil.copy(model / each, name)
        config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = CONTEXT_LENGTH
        (Path(name) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield Path(name)


def crowd_table(load: CrowdLoad, rows: Sequence[Crowd]) -> Table:
    """The rows as a table."""
    title = f"{load.streams} streams, a token every {load.step_s * 1e3:g} ms, beside prompts one at a time"
    columns = ("beside (bytes)", "prompts", f"longest gap (ms), <= {TARGET_GAP_MS:g}", "client late (ms)")
    table = Table(*columns, "CPU per token (us)", "peak memory (MB)", title=title)
    for row in rows:
        gaps = (f"{row.longest_gap_ms:.0f}", f"{row.client_late_ms:.0f}")
        table.add_row(
            str(row.beside_bytes),
            str(row.num_beside),
            *gaps,
            f"{row.cpu_us_per_token:.0f}",
            f"{row.peak_memory_mb:.0f}",
        )
    return table


def crowd_json(rows: Sequence[Crowd]) -> list[dict[str, Any]]:
    """The rows as JSON, with null if no pause was seen."""
    return [{name: round(value, 1) if isfinite(value) else None for name, value in asdict(row).items()} for row in rows]
