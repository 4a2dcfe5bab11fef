"""What a speculative launch of the bundled model costs beside a decode step, and tokens a second with and without.

The accepted lengths are measured on held-out prompts. Batches of 1, 4 and 16, one thread. Then requests decode with a
draft and without in turns, first with a fixed number of steps or a tree, then with a number that follows from measured
costs. Last, clients ask over HTTP (spec_http.py). All of it takes four minutes.
"""

import argparse
import asyncio
from functools import partial
from statistics import median
from typing import Any, Final

import torch

from bench.records import Value
from bench.rounds import in_rounds, ratios, spread
from bench.sheet import Sheet
from bench.step.costs import Costs, measure_costs
from bench.step.flags import count
from bench.step.serving import Load, long_prompts, measured
from bench.step.spec_http import CLIENTS
from bench.step.spec_http import measure as over_http
from bench.step.spec_where import where
from model.runner import DraftSource, ModelRunner
from models.train.draft import KINDS
from models.train.draft_text import HELD_OUT_SEED, prompts
from models.train.measure_draft import MAX_STEPS, WAYS
from models.train.measure_draft import measure as accepted
from models.train.train import STORY_FOLDER
from scheduler.draft_shape import NO_DRAFT, DraftShape

CONTEXT: Final = 128
SERVED_TOKENS: Final = 96
WITHOUT: Final = "without"
CLIENTS_HELP: Final = "clients over HTTP (default: all of these numbers); none: not over HTTP"
SHAPES: Final = {
    **{f"{num} steps": DraftShape(num) for num in (1, 2, 3, 4, 6)},
    "tree 3, top-k 2, 8 nodes": DraftShape(3, 2, 8),
    "tree 4, top-k 2, 8 nodes": DraftShape(4, 2, 8),
    "tree 4, top-k 4, 16 nodes": DraftShape(4, 4, 16),
}
GOALS: Final = {"6 steps": (1, 1.3), "adaptive": (None, 0.95)}  # batch (None: each) and the least ratio
COST_ABOUT: Final = "*draft*, *verify*, *extend*: over a step. *xN*: speed with N steps. *best*: steps of the fastest."
SERVED_ABOUT: Final = "*beside without*: the median of the rounds, and their range. *length*: tokens of a launch."


def flags(parser: argparse.ArgumentParser) -> None:
    """What may be asked for."""
    kinds = [name for name, kind in KINDS.items() if not kind.is_mtp]
    parser.add_argument("--draft", choices=kinds, default="eagle", help="the bundled model's draft (default: eagle)")
    parser.add_argument("--batches", type=count, nargs="+", default=(1, 4, 16), help="requests (default 1 4 16)")
    parser.add_argument("--rounds", type=count, default=60, help="calls of every part (default 60)")
    parser.add_argument("--texts", type=count, default=60, help="held-out prompts (default 60)")
    parser.add_argument("--turns", type=count, default=3, help="of each side, with a draft and without (default 3)")
    parser.add_argument("--where", action="store_true", help="only where the time of a launch goes, part by part")
    parser.add_argument("--clients", type=int, nargs="*", choices=[*CLIENTS], default=[*CLIENTS], help=CLIENTS_HELP)
    parser.add_argument("--http-rounds", type=count, default=10, help="of each side over HTTP (default 10)")


def measure(asked: argparse.Namespace, sheet: Sheet) -> None:
    """Writes three tables, or two without clients; with `where` another one alone."""
    kind = KINDS[asked.draft]
    runner = ModelRunner.load(STORY_FOLDER, device="cpu", draft=DraftSource(asked.draft, kind.folder))
    if asked.where:
        torch.set_num_threads(1)
        long = _long_prompts(runner, max(asked.batches))
        for batch in asked.batches:
            where(sheet, runner, Load(long[:batch], SERVED_TOKENS), asked.turns)
        return

    [lengths] = accepted(kind, asked.texts, WAYS[:1]).values()  # greedy
    for batch in asked.batches:
        costs = measure_costs(runner, batch, CONTEXT, MAX_STEPS, asked.rounds)
        sheet.row("Costs of a launch", {"batch": batch, **cost_cells(costs, lengths.lengths)}, COST_ABOUT)
    _serve(sheet, runner, asked.batches, asked.turns)
    if asked.clients:
        asyncio.run(over_http(sheet, asked.draft, asked.clients, asked.http_rounds))


def cost_cells(costs: Costs, lengths: list[float]) -> dict[str, Any]:
    """Costs, and the speed beside decode steps with each number of steps."""
    cells = {"step us": costs.plain_us, "draft": costs.draft_us / costs.plain_us}
    cells |= {"verify 5": costs.verify_us[3] / costs.plain_us, "extend 5": costs.extend_us[3] / costs.plain_us}
    speeds = {f"x{num}": costs.speed_up(lengths, num) for num in range(1, len(lengths) + 1)}
    return {**cells, "accepted, 4 steps": lengths[3], **speeds, "best": costs.best(lengths)}


def _long_prompts(runner: ModelRunner, number: int) -> list[tuple[int, ...]]:
    """Held-out prompts whose answers do not end."""
    asked = prompts(HELD_OUT_SEED, 8 * max(number, 16))
    answers = measured(runner, Load(asked, SERVED_TOKENS), NO_DRAFT).outputs  # one is whole, the others nearly
    return long_prompts(asked, answers, runner.config.eos_token_ids, number)


def _serve(sheet: Sheet, runner: ModelRunner, batches: list[int], turns: int) -> None:
    """By batch and shape, tokens a second beside those without a draft."""
    long = _long_prompts(runner, max(batches))
    for batch in batches:
        load = Load(long[:batch], SERVED_TOKENS)
        sides = {name: partial(measured, runner, load, shape) for name, shape in ((WITHOUT, NO_DRAFT), *SHAPES.items())}
        sides["adaptive"] = partial(measured, runner, load, DraftShape(6), adaptive=True)
        by_side = in_rounds(sides, turns)
        speeds = {name: [run.tokens_per_s for run in runs] for name, runs in by_side.items()}
        for name, runs in by_side.items():
            beside = ratios(speeds[name], speeds[WITHOUT])
            cells: dict[str, Value] = {"batch": batch, "steps": name, "tokens/s": median(speeds[name])}
            cells |= {"beside without": spread(beside), "length": median(run.mean_length for run in runs)}
            sheet.row("Tokens a second", cells, SERVED_ABOUT)
            of_batch, least = GOALS.get(name, (0, 0.0))
            if of_batch in (None, batch):
                sheet.goal(f"batch {batch}, {name}: tokens/s / without", median(beside), "at least", least)
