"""`python -m loadtest`: the same load on two deployments in turn, as a table: a pair beside a unified worker, or
overlap beside serial scheduling.

    each round:  deploy one side, warm it, load it, stop it; then the other side

The last line is one JSON object. What it does not know: how requests are timed (client.py) or summed up (report.py).
"""

import argparse
import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from rich.console import Console
from rich.table import Table

from loadtest.client import Timing, stream_one
from loadtest.deployment import deployed
from loadtest.report import Figures, figures, median_figures, ratios
from runtime.clock import MonotonicClock

Sides = Mapping[str, tuple[str, ...]]  # name -> arguments of baton serve; the second is the baseline
COMPARISONS: Mapping[str, Sides] = {
    "topology": {
        "1P1D": ("--prefill", "1", "--decode", "1", "--unified", "0"),
        "unified": ("--prefill", "0", "--decode", "0", "--unified", "1"),
    },
    "overlap": {"overlap": (), "serial": ("--disable-overlap-schedule",)},
}
WARM_UP = 4  # requests that are not counted


@dataclass(frozen=True)
class Load:
    """What a round asks for. `vocab` bounds the random prompt ids."""

    num_requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    vocab: int
    seed: int


async def run_load(url: str, load: Load) -> Figures:
    """One round: warm-up, then `num_requests` at `concurrency`."""
    clock = MonotonicClock()
    rng = random.Random(load.seed)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        async with session.get(f"{url}/v1/models") as response:
            model = (await response.json())["data"][0]["id"]
        places = asyncio.Semaphore(load.concurrency)

        async def one() -> Timing:
            prompt = [rng.randrange(load.vocab) for _ in range(load.prompt_tokens)]
            async with places:
                return await stream_one(session, clock, url, model, prompt, load.output_tokens)

        await asyncio.gather(*(one() for _ in range(WARM_UP)))
        start = clock.now()
        timings = await asyncio.gather(*(one() for _ in range(load.num_requests)))
        return figures(timings, clock.now() - start)


async def compare(
    sides: Sides, load: Load, rounds: int, arguments: Sequence[str], console: Console
) -> dict[str, list[Figures]]:
    """Figures by side; sides alternate, so that a drift of the machine meets both."""
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, own in sides.items():
            console.print(f"round {number + 1} of {rounds}: {name}")
            async with deployed([*arguments, *own]) as url:
                found[name].append(await run_load(url, load))
    return found


def show(found: dict[str, list[Figures]], load: Load, console: Console) -> None:
    """The table, and the JSON line for programs."""
    medians = {name: median_figures(rounds) for name, rounds in found.items()}
    title = (
        f"{load.num_requests} requests, {load.concurrency} at a time, {load.prompt_tokens} tokens in, "
        f"{load.output_tokens} out"
    )
    ours, baseline = found
    rounds = len(found[ours])
    console.print(title, "in 1 round" if rounds == 1 else f"(medians of {rounds} rounds)")
    table = Table()
    table.add_column("figure")
    for name in medians:
        table.add_column(name, justify="right")
    table.add_column(f"{ours} / {baseline}", justify="right")
    ratio = ratios(found[ours], found[baseline])
    for figure in next(iter(medians.values())):
        cells = [_cell(values[figure], "g") for values in medians.values()]
        table.add_row(figure, *cells, _cell(ratio[figure], ".2f") if figure in ratio else "")
    console.print(table)
    for name, figures_of_rounds in found.items():
        if error := next((each.first_error for each in figures_of_rounds if each.first_error), ""):
            console.print(f"{name}: {medians[name]['num_errors']:g} requests failed; the first: {error}")
    print(json.dumps({**medians, f"ratio_{ours}_to_{baseline}": ratio}))


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {value}, expected at least 1")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if any request failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--compare", choices=sorted(COMPARISONS), default="topology", help="what differs between the sides"
    )
    parser.add_argument("--num", type=_positive, default=64, help="requests per round (default 64)")
    parser.add_argument("--concurrency", type=_positive, default=16, help="requests at a time (default 16)")
    parser.add_argument("--inp", type=_positive, default=256, help="prompt tokens (default 256)")
    parser.add_argument("--out", type=_positive, default=64, help="output tokens (default 64)")
    parser.add_argument("--vocab", type=_positive, default=512, help="prompt ids are below this (default 512)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default 0)")
    parser.add_argument("--rounds", type=_positive, default=3, help="rounds of each side (default 3)")
    parser.add_argument("serve", nargs="*", help="further arguments of baton serve, after --")
    asked = parser.parse_args(argv)
    load = Load(asked.num, asked.concurrency, asked.inp, asked.out, asked.vocab, asked.seed)
    console = Console()
    found = asyncio.run(compare(COMPARISONS[asked.compare], load, asked.rounds, asked.serve, console))
    show(found, load, console)
    return 1 if any(each.num_errors for rounds in found.values() for each in rounds) else 0


if __name__ == "__main__":
    raise SystemExit(main())
