"""`python -m bench.gateway.answers`: what large answers to small bodies cost the gateway, and a stream beside them.

Each row has a gateway process of its own with workers that have no model. One client reads a stream, a token every
10 ms, while others ask for the row's answer at once. The last line of output is one JSON object.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.gateway.crowd import Lateness, longest_gap_s
from bench.gateway.fake_pair import PROMPT_PIECE, FakePair
from bench.gateway.lone_gateway import Running, gateway_process, peak_memory_mb, post, stream
from protocol.logprobs import PromptLogprobsAsked
from runtime.clock import MonotonicClock
from tests.doubles.fake_worker import packed_scores

MODEL, VOCAB_SIZE, STEP_S = "models/story", 1024, 0.01
PROMPT: Final = [30 + place % 990 for place in range(1900)]  # the workers tell of ids below each token's own
SHORT: Final = [5, 6, 7]
COMPLETIONS, GENERATE = "/v1/completions", "/generate"
Body = dict[str, Any]


def native(prompt: Any, new_tokens: int, **fields: Any) -> Body:
    """A body of /generate that asks for log-probabilities with 20 of the likeliest tokens."""
    sampling = {"max_new_tokens": new_tokens, "ignore_eos": True, "n": fields.pop("n", 1)}
    asked = {"return_logprob": True, "top_logprobs_num": 20}
    return {"input_ids": prompt, "sampling_params": sampling, **asked, **fields}


def openai(prompt: Any, max_tokens: int, **fields: Any) -> Body:
    """A body of /v1/completions."""
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}


SALTS: Final = [str(place) for place in range(800)]
CASES: Final[dict[str, tuple[str, Body]]] = {  # (path, body); see ALONE
    "nothing": (COMPLETIONS, openai(SHORT, 1)),
    "prompt_logprobs 20, n 64": (COMPLETIONS, openai(PROMPT, 1, prompt_logprobs=20, n=64)),
    "prompt_logprobs 20, n 25": (COMPLETIONS, openai(PROMPT, 1, prompt_logprobs=20, n=25)),
    "echo, logprobs 20, n 25": (COMPLETIONS, openai(PROMPT, 1, echo=True, logprobs=20, n=25)),
    "echo, logprobs 20, n 25, stream": (COMPLETIONS, openai(PROMPT, 1, echo=True, logprobs=20, n=25, stream=True)),
    "logprobs 20, n 64, 256 tokens": (COMPLETIONS, openai(SHORT, 256, logprobs=20, n=64)),
    "logprobs 20, n 64, 256 tokens, stream": (COMPLETIONS, openai(SHORT, 256, logprobs=20, n=64, stream=True)),
    "n 128, 1,900 tokens": (COMPLETIONS, openai(SHORT, 1900, n=128)),
    "/generate, prompt scored, n 25": (GENERATE, native(PROMPT, 1, logprob_start_len=0, n=25)),
    "/generate, prompt scored, 64 tokens, stream": (GENERATE, native(PROMPT, 64, logprob_start_len=0, stream=True)),
    "/generate, n 16, 256 tokens, stream": (GENERATE, native(SHORT, 256, n=16, stream=True)),
    "/generate, 800 prompts of one stop list": (
        GENERATE,
        {
            "input_ids": [[5]] * 800,
            "cache_salt": SALTS,
            "sampling_params": {"max_new_tokens": 1, "stop": [f"{place:02}" + "x" * 60 for place in range(64)]},
        },
    ),
}

ALONE: Final = ("256 tokens", "1,900 tokens", "800 prompts")  # one client asks for these: they keep workers busy, too


@dataclass(frozen=True)
class Row:
    """What a case has cost. `grown_mb`: memory of the gateway above what it had before."""

    case: str
    status: int
    body_kb: float
    answer_mb: float  # of one client
    seconds: float  # until all have their answer
    longest_gap_ms: float  # of the stream beside them
    client_late_ms: float  # the greatest delay of the measuring process itself
    grown_mb: float


async def measure(case: str, clients: int) -> Row:
    """Starts a gateway, and lets so many clients ask for the answer at once."""
    path, fields = CASES[case]
    body, clock = json.dumps(fields).encode(), MonotonicClock()
    for start in range(1, len(PROMPT), PROMPT_PIECE):  # the workers have them ready
        packed_scores(tuple(PROMPT[start : start + PROMPT_PIECE]), start, PromptLogprobsAsked(20))
    async with gateway_process(MODEL) as gateway, FakePair(gateway.control, clock, STEP_S, VOCAB_SIZE):
        await stream(gateway.url, clock, SHORT, 8)
        before_mb = peak_memory_mb(gateway.pid)
        async with asyncio.TaskGroup() as tasks:
            has_begun, may_end = asyncio.Event(), asyncio.Event()
            neighbour = tasks.create_task(_neighbour(gateway, clock, has_begun, may_end))
            await has_begun.wait()
            lateness = Lateness(clock)
            ticking = tasks.create_task(lateness.watch())
            begun = clock.now()
            asked = [tasks.create_task(_ask(gateway.url, path, body)) for _ in range(clients)]
            answers = [await each for each in asked]
            ended = clock.now()
            may_end.set()
            ticking.cancel()
        gap_s = max(longest_gap_s([each], begun, ended) for each in neighbour.result())
        return Row(
            case,
            answers[0][0],
            len(body) / 1e3,
            answers[0][1] / 1e6,
            ended - begun,
            gap_s * 1e3,
            lateness.most_s * 1e3,
            peak_memory_mb(gateway.pid) - before_mb,
        )


async def _neighbour(
    gateway: Running, clock: MonotonicClock, begun: asyncio.Event, may_end: asyncio.Event
) -> list[Any]:
    """Streams that follow one another until `may_end`."""
    found = []
    while not may_end.is_set():
        found.append(await stream(gateway.url, clock, SHORT, 300, begun.set))
    return found


async def _ask(url: str, path: str, body: bytes) -> tuple[int, int]:
    """(status, bytes of the answer), which is read as fast as it comes and thrown away."""
    head, num_bytes = b"", 0
    async for part in post(url, body, path):
        head = head or part
        num_bytes += len(part)
    return int(head.split(b" ", 2)[1]), num_bytes


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gateway.answers",
        description="A gateway alone, with workers that have no model: memory and the longest gap of a stream, while "
        "clients ask for large answers with small bodies.",
    )
    parser.add_argument("--clients", type=int, default=6, help="that ask at once (default 6)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases whose name has this text")
    args = parser.parse_args(argv)
    cases = {case: 1 if any(each in case for each in ALONE) else args.clients for case in CASES if args.only in case}
    rows = [asyncio.run(measure(case, clients)) for case, clients in cases.items()]

    table = Table("case", "clients", "status", "body (kB)", "answer (MB)", "s", "gap (ms)", "own (ms)", "memory (MiB)")
    for row in rows:
        figures = (row.body_kb, row.answer_mb, row.seconds, row.longest_gap_ms, row.client_late_ms, row.grown_mb)
        table.add_row(row.case, str(cases[row.case]), str(row.status), *(f"{value:.1f}" for value in figures))
    Console(width=130).print(table)
    print(json.dumps({"answers": [asdict(row) for row in rows]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
