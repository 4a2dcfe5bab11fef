"""`python -m bench.peer` (`make bench`): Baton beside vLLM under the same loads, in rounds: first one, then the other.

    unified    a unified worker: 16 clients, then one
    pair       a prefill and a decode worker: streams alone, and beside long prompts
    experts    a unified worker with a mixture of experts: one client, then 16; only if it is asked for
    trace      a unified worker with its prefix cache, on a trace; only if it is asked for

Both sides are treated alike: each is started for its turn, warmed up, measured and stopped. Without a peer, Baton is
measured alone. The last line of output is one JSON object.
"""

import argparse
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final, Literal

from bench.programs import run_program
from bench.rounds import spread
from bench.sheet import Printed, Sheet
from bench.vllm import ABSENT, VARIABLE, peer_executable, peer_running, version_of
from loadtest.bench_flags import at_least
from loadtest.bench_model import CONFIG, bench_model, experts_model
from loadtest.deployment import PAIR, UNIFIED, deployed
from loadtest.http_exchange import Server
from loadtest.load import cells_of, failures, plain_load, run_load
from loadtest.measure import RUN_SEED, Load
from loadtest.work.conversations import RandomWork
from loadtest.work.lengths import Lengths
from loadtest.work.trace import BLOCK_TOKENS, TraceWork, trace
from runtime.clock import MonotonicClock

OURS, PEER = "Baton", "vLLM"
CROWD, ALONE, QUIET, DISTURBED, TRACE = "16 clients", "1 client", "8 streams", "8 streams, disturbed", "trace"
CROWD_OF_EXPERTS, ALONE_WITH_EXPERTS = "16 clients, experts", "1 client, experts"
VOCAB: Final = int(CONFIG["vocab_size"])
PAGE_SIZE, POOL_TOKENS = 32, 16384  # of both sides' KV memory for the trace
QUICK_REQUESTS: Final = 8
ABOUT: Final = "Latencies in ms; medians of rounds, and their range. *max*: the longest of a round."
Rounds = Mapping[tuple[str, str], Sequence[Mapping[str, float | None]]]  # cells by side and load


@dataclass(frozen=True)
class Scenario:
    """Loads that one deployment serves in turn. `serve`, `peer`: arguments of `baton serve` and of vLLM. `model` makes
    the folder that both serve."""

    serve: tuple[str, ...]
    loads: Mapping[str, Load]
    peer: tuple[str, ...] = ()
    model: Callable[[], Path] = bench_model


@dataclass(frozen=True)
class Target:
    """A bound for a figure of `over` divided by that of `under`, each a side and a load: the median over rounds."""

    figure: str
    over: tuple[str, str]
    under: tuple[str, str]
    sense: Literal["at least", "at most"]
    bound: float

    def __str__(self) -> str:
        (side, load), (other, beside) = self.over, self.under
        return f"{load}: {self.figure}, {side} / {other}{f', {beside}' if beside != load else ''}"

    def ratio(self, rounds_of: Rounds) -> float | None:
        """None without rounds that have both figures."""
        pairs = zip(rounds_of.get(self.over, ()), rounds_of.get(self.under, ()), strict=False)
        both = [(over[self.figure], under[self.figure]) for over, under in pairs]
        ratios = [over / under for over, under in both if over is not None and under]
        return median(ratios) if ratios else None


def _trace_load() -> Load:
    """160 requests in 40 seconds, however many still run."""
    work = TraceWork(trace(0, 160, 40.0), BLOCK_TOKENS, VOCAB)
    return Load(work=work, arrivals=work.arrivals(1.0), num_warmups=QUICK_REQUESTS, seed=5, stops_when_saturated=False)


_STREAMS = plain_load(32, 8, 64, 400, VOCAB, seed=3)
SCENARIOS: Final = {
    "unified": Scenario(
        UNIFIED, {CROWD: plain_load(64, 16, 256, 64, VOCAB, seed=1), ALONE: plain_load(10, 1, 256, 64, VOCAB, seed=2)}
    ),
    "pair": Scenario(PAIR, {QUIET: _STREAMS, DISTURBED: replace(_STREAMS, seed=4, intruder_rate=1.0)}),
    "experts": Scenario(
        UNIFIED,
        {
            ALONE_WITH_EXPERTS: plain_load(10, 1, 256, 64, VOCAB, seed=6),
            CROWD_OF_EXPERTS: plain_load(64, 16, 256, 64, VOCAB, seed=7),
        },
        model=experts_model,
    ),
    "trace": Scenario(
        (*UNIFIED, "--page-size", str(PAGE_SIZE), "--max-total-tokens", str(POOL_TOKENS)),
        {TRACE: _trace_load()},
        ("--block-size", str(PAGE_SIZE), "--num-gpu-blocks-override", str(POOL_TOKENS // PAGE_SIZE),
         "--enable-prefix-caching", "--enable-prompt-tokens-details"),
    ),
}  # fmt: skip


def _beside(load: str, figure: str, sense: Literal["at least", "at most"], bound: float) -> Target:
    return Target(figure, (OURS, load), (PEER, load), sense, bound)


TARGETS: Final = (
    _beside(CROWD, "tokens/s", "at least", 1.3),
    _beside(CROWD, "ITL p99", "at most", 1.5),
    _beside(ALONE, "TTFT p50", "at most", 1.0),
    _beside(ALONE, "ITL p50", "at most", 1.0),
    Target("ITL p99.9", (PEER, DISTURBED), (OURS, DISTURBED), "at least", 20.0),
    Target("ITL p99.9", (OURS, DISTURBED), (OURS, QUIET), "at most", 2.0),
    _beside(DISTURBED, "tokens/s", "at least", 1.5),
    _beside(DISTURBED, "long prompts' TTFT p50", "at most", 1.5),
    _beside(ALONE_WITH_EXPERTS, "tokens/s", "at least", 1.0),
    _beside(CROWD_OF_EXPERTS, "tokens/s", "at least", 1.0),
    _beside(TRACE, "cached share", "at least", 0.95),
    _beside(TRACE, "TTFT p50", "at most", 0.8),
)


def smaller(load: Load) -> Load:
    """A load that shows that everything works. It measures nothing."""
    work = replace(load.work, answer=Lengths("fixed", 16)) if isinstance(load.work, RandomWork) else load.work
    return replace(load, work=work, num_conversations=2 * load.max_concurrency if load.max_concurrency else 8)


async def compare(names: Sequence[str], rounds: int, is_quick: bool, arguments: Sequence[str], sheet: Sheet) -> None:
    """Measures these scenarios. `arguments` are passed to `baton serve`. Both sides get the same prompts, each round
    others, so that none is cached."""
    executable, clock = peer_executable(os.environ), MonotonicClock()
    sheet.note(f"the peer: vLLM {await version_of(executable)}" if executable else ABSENT)
    rounds_of = dict[tuple[str, str], list[dict[str, float | None]]]()
    for number in range(rounds):
        for name in names:
            scenario = SCENARIOS[name]
            for side in (OURS, PEER) if executable else (OURS,):
                sheet.note(f"round {number + 1} of {rounds}, {name}: {side}")
                async with _running(executable if side == PEER else None, scenario, arguments) as server:
                    for load_name, load in scenario.loads.items():
                        asked = replace(smaller(load) if is_quick else load, seed=load.seed + RUN_SEED * number)
                        measured = await run_load(server, clock, asked)
                        rounds_of.setdefault((side, load_name), []).append(cells_of(measured))
                        if reason := failures(measured):
                            sheet.fault(f"{load_name}, {side}: {reason}")
    show(rounds_of, sheet)


@asynccontextmanager
async def _running(executable: str | None, scenario: Scenario, arguments: Sequence[str]) -> AsyncIterator[Server]:
    """A side, started for its turn: Baton without an `executable`."""
    model = scenario.model()
    if executable is None:
        async with deployed(["--model", str(model), *arguments, *scenario.serve]) as url:
            yield Server.at(url, "")
    else:
        async with peer_running(MonotonicClock(), executable, model, scenario.peer) as peer:
            yield peer.server


def show(rounds_of: Rounds, sheet: Sheet) -> None:
    """A table for each load with a line for each side; then the targets of those that were measured."""
    loads = {name: load for scenario in SCENARIOS.values() for name, load in scenario.loads.items()}
    for side, name in sorted(rounds_of, key=lambda side_and_load: list(loads).index(side_and_load[1])):
        rounds = rounds_of[side, name]
        known = {figure: [value for cells in rounds if (value := cells[figure]) is not None] for figure in rounds[0]}
        cells = {figure: spread(values) if values else None for figure, values in known.items()}
        sheet.row(f"{name}: {loads[name].words()}", {"side": side, **cells}, ABOUT)

    for target in TARGETS:
        if (ratio := target.ratio(rounds_of)) is not None:
            sheet.goal(str(target), ratio, target.sense, target.bound)
        elif target.over in rounds_of and target.under in rounds_of:
            sheet.note(f"{target}: no figure, because the values are too few")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if a request failed, 2 for a server that does not start, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peer",
        description="Measures Baton beside vLLM on this machine.",
        epilog=f"The peer is {VARIABLE}, the path of a vllm executable.",
    )
    parser.add_argument("--rounds", type=at_least(1), default=3, help="rounds of each side (default 3)")
    parser.add_argument("--quick", action="store_true", help="one small round; shows that it works, no more")
    parser.add_argument(
        "--scenario", choices=SCENARIOS, action="append", help="this deployment (repeatable; default: unified and pair)"
    )
    parser.add_argument("serve", nargs="*", help="further arguments of baton serve, after --")
    asked = parser.parse_args(argv)

    sheet, names = Printed("peer"), asked.scenario or ("unified", "pair")
    job = compare(names, 1 if asked.quick else asked.rounds, asked.quick, asked.serve, sheet)
    return run_program("bench.peer", job, sheet)


if __name__ == "__main__":
    raise SystemExit(main())
