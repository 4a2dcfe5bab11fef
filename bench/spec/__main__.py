"""`python -m bench.spec`: what a speculative launch costs beside a decode step, and tokens a second with and without.

For the bundled model and its draft, the accepted lengths are measured on held-out prompts. For the 29M model of the
other benchmarks, with a draft of random weights, they are those of a given acceptance. Batches of 1, 4 and 16, one
thread. Then requests decode with a draft and without in turns, first with a fixed number of steps, then with one that
follows from measured costs. The last line of output is one JSON object.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from rich.console import Console
from safetensors.torch import save_file
from tokenizers import Tokenizer

from bench.memory.figures import show_rows
from bench.spec.costs import Costs, Sampled, geometric, measure_costs
from bench.spec.serving import Load, Run, measured
from loadtest.bench_model import CONFIG, bench_model
from model.runner import DraftSource, ModelRunner
from models.train.draft import KINDS
from models.train.draft_net import EagleNet
from models.train.draft_text import HELD_OUT_SEED, prompts
from models.train.measure_draft import MAX_STEPS, WAYS, measure
from models.train.recipe import SAMPLING, Shape
from models.train.train import STORY_FOLDER

BATCHES: Final = (1, 4, 16)
ACCEPTANCES: Final = (0.0, 0.5, 0.8)
CONTEXT: Final = 128
SERVED_STEPS: Final = (1, 2, 3, 4, 6)
TREES: Final = {  # by name: levels, top-k and nodes
    "tree 3, top-k 2, 8 nodes": (3, (2, 8)),
    "tree 4, top-k 2, 8 nodes": (4, (2, 8)),
    "tree 4, top-k 4, 16 nodes": (4, (4, 16)),
}
SERVED_TOKENS: Final = 96
SERVED_29M_TOKENS: Final = 48
SAMPLERS: Final[Mapping[str, Sampled]] = {  # by the names of measure_draft.py
    "greedy": Sampled(),
    "most likely": Sampled(),
    "inverse CDF": Sampled(SAMPLING["temperature"], masks=True),
    "inverse CDF, no masks": Sampled(SAMPLING["temperature"]),
}


def measure_story(algorithm: str, batches: Sequence[int], num_texts: int, num_rounds: int) -> list[dict[str, Any]]:
    """Rows of the bundled model: by batch, how it draws and how its draft proposes."""
    kind = KINDS[algorithm]
    runner = ModelRunner.load(STORY_FOLDER, device="cpu", draft=DraftSource(algorithm, kind.folder))
    ways = [way for way in WAYS if way.draw in SAMPLERS]
    lengths = {way: figures.lengths for way, figures in measure(kind, num_texts, ways).items()}
    rows = []
    for batch in batches:
        for way in ways:
            drawn, proposed = SAMPLERS[way.draw], SAMPLERS[way.propose]
            costs = measure_costs(runner, batch, CONTEXT, MAX_STEPS, num_rounds, drawn, proposed)
            rows.append(row_of(batch, way.name, costs, lengths[way]))
    return rows


def measure_29m(batches: Sequence[int], num_rounds: int) -> list[dict[str, Any]]:
    """Rows of the 29M model, greedy: by batch and acceptance."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        write_random_draft(Path(scratch))
        runner = ModelRunner.load(bench_model(), device="cpu", draft=DraftSource("eagle", Path(scratch)))
        for batch in batches:
            costs = measure_costs(runner, batch, CONTEXT, MAX_STEPS, num_rounds)
            rows += [row_of(batch, f"accepts {each:.0%}", costs, geometric(each, MAX_STEPS)) for each in ACCEPTANCES]
    return rows


def write_random_draft(folder: Path) -> None:
    """A draft of the 29M model, with random weights."""
    shape = Shape(
        vocab_size=CONFIG["vocab_size"],
        hidden_size=CONFIG["hidden_size"],
        intermediate_size=CONFIG["intermediate_size"],
        num_layers=1,
        num_heads=CONFIG["num_attention_heads"],
        num_kv_heads=CONFIG["num_key_value_heads"],
        head_dim=CONFIG["head_dim"],
    )
    weights = {name: weight.to(torch.bfloat16) for name, weight in EagleNet(shape).state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    config = {**CONFIG, "architectures": ["Qwen3ForCausalLMEagle"], "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))


def row_of(batch: int, what: str, costs: Costs, lengths: Sequence[float]) -> dict[str, Any]:
    """One row: costs, and the speed beside decode steps with each number of steps."""
    speeds = {f"x{num}": digits(costs.speed_up(lengths, num)) for num in range(1, len(lengths) + 1)}
    return {
        "batch": batch,
        "what": what,
        "step us": round(costs.plain_us),
        "draft / step": digits(costs.draft_us / costs.plain_us),
        "verify 5 / step": digits(costs.verify_us[3] / costs.plain_us),
        "extend 5 / step": digits(costs.extend_us[3] / costs.plain_us),
        "accepted, 4 steps": round(lengths[3], 2),
        **speeds,
        "best": costs.best(lengths),
    }


def digits(ratio: float) -> float:
    """Three of them: no ratio is shown as 0, however much one of its times was disturbed."""
    return float(f"{ratio:.3g}")


def serve_story(algorithm: str, batches: Sequence[int], num_rounds: int) -> list[dict[str, Any]]:
    """Rows of the bundled model: by batch and number of steps or tree, tokens a second beside those without a draft."""
    runner = ModelRunner.load(STORY_FOLDER, device="cpu", draft=DraftSource(algorithm, KINDS[algorithm].folder))
    tokenizer, ends = Tokenizer.from_file(str(STORY_FOLDER / "tokenizer.json")), runner.config.eos_token_ids
    asked = [tuple(prompt) for prompt in prompts(tokenizer, HELD_OUT_SEED, 8 * max(*BATCHES, *batches))]
    answers = measured(runner, Load(asked, SERVED_TOKENS), None).outputs  # one of them is whole, the others nearly
    long = [prompt for prompt, answer in zip(asked, answers, strict=True) if not set(ends) & set(answer)]
    assert len(long) >= max(batches), "too few of the answers are long"
    rows = []
    for batch in batches:
        load = Load(long[:batch], SERVED_TOKENS)
        sides = {str(num_steps): partial(measured, runner, load, num_steps) for num_steps in SERVED_STEPS}
        sides |= {name: partial(measured, runner, load, num, tree=tree) for name, (num, tree) in TREES.items()}
        sides["adaptive"] = partial(measured, runner, load, max(SERVED_STEPS), adaptive=True)
        rows += beside_plain(batch, partial(measured, runner, load, None), sides, num_rounds)
    return rows


def serve_29m(batches: Sequence[int], num_rounds: int) -> list[dict[str, Any]]:
    """Rows of the 29M model, whose proposals are right as often as they are told to be."""
    rng, rows = random.Random(29), []
    with tempfile.TemporaryDirectory() as scratch:
        write_random_draft(Path(scratch))
        runner = ModelRunner.load(bench_model(), device="cpu", draft=DraftSource("eagle", Path(scratch)))
        for batch in batches:
            tokens = [tuple(rng.choices(range(runner.config.vocab_size), k=CONTEXT)) for _ in range(batch)]
            load = Load(tokens, SERVED_29M_TOKENS)
            plain = partial(measured, runner, load, None)
            texts = measured(runner, Load(tokens, 2 * SERVED_29M_TOKENS), None).outputs
            for each in ACCEPTANCES:
                forced = partial(measured, runner, load, 4, texts=texts, acceptance=each)
                sides = {f"4, accepts {each:.0%}": forced, f"adaptive, {each:.0%}": partial(forced, adaptive=True)}
                rows += beside_plain(batch, plain, sides, num_rounds)
    return rows


def beside_plain(
    batch: int, plain: Callable[[], Run], sides: Mapping[str, Callable[[], Run]], num_rounds: int
) -> list[dict[str, Any]]:
    """A row for each side, which runs behind `plain` in every round."""
    ratios: dict[str, list[float]] = {name: [] for name in sides}
    runs: dict[str, list[Run]] = {name: [] for name in ("without", *sides)}
    for _ in range(num_rounds):
        for name, side in sides.items():
            base, run = plain(), side()
            runs["without"].append(base)
            runs[name].append(run)
            ratios[name].append(run.tokens_per_s / base.tokens_per_s)

    base_s = median(run.tokens_per_s for run in runs["without"])
    rows = [{"batch": batch, "steps": "without", "tokens/s": round(base_s), "beside without": 1.0, "length": 1.0}]
    for name, found in ratios.items():
        speed, length = (median(getattr(run, field) for run in runs[name]) for field in ("tokens_per_s", "mean_length"))
        row = {"batch": batch, "steps": name, "tokens/s": round(speed), "beside without": digits(median(found))}
        rows.append(row | {"range": f"{min(found):.2f}-{max(found):.2f}", "length": round(length, 2)})
    return rows


def summary(costs: Sequence[Mapping[str, Any]], served: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean accepted length with 4 steps, and tokens a second at the best fixed number of steps, by batch."""
    found = {}
    for batch in dict.fromkeys(row["batch"] for row in served):
        rows = {str(row["steps"]): row["tokens/s"] for row in served if row["batch"] == batch}
        best = max((str(num_steps) for num_steps in SERVED_STEPS), key=lambda steps: rows[steps])
        found[str(batch)] = {"spec_tok_s": rows[best], "plain_tok_s": rows["without"], "steps": int(best)}
    return {"accepted_length": costs[0]["accepted, 4 steps"], "batch": found}


def count(text: str) -> int:
    """A number of the command line, at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected at least 1")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m bench.spec", description=__doc__.partition("\n")[0])
    kinds = [name for name, kind in KINDS.items() if not kind.is_mtp]
    parser.add_argument("--draft", choices=kinds, default="eagle", help="the bundled model's draft (default: eagle)")
    parser.add_argument("--batches", type=count, nargs="+", default=BATCHES, help="requests at a time (default 1 4 16)")
    parser.add_argument("--rounds", type=count, default=100, help="calls of every part (default 100)")
    parser.add_argument("--texts", type=count, default=120, help="held-out prompts (default 120)")
    parser.add_argument(
        "--turns", type=count, default=5, help="turns of each side, with a draft and without (default 5)"
    )
    parser.add_argument("--markdown", action="store_true", help="tables that can be pasted into a page")
    asked = parser.parse_args(argv)

    torch.set_num_threads(1)
    console = Console(width=160, highlight=False)
    story = measure_story(asked.draft, asked.batches, asked.texts, asked.rounds)
    show_rows(console, "the bundled model and its draft (xN: speed with N steps)", story, asked.markdown)
    large = measure_29m(asked.batches, asked.rounds)
    show_rows(console, "the 29M model, a draft of random weights, greedy", large, asked.markdown)

    served = serve_story(asked.draft, asked.batches, asked.turns)
    show_rows(console, "the bundled model decodes held-out prompts, greedily, in turns", served, asked.markdown)
    served_29m = serve_29m(asked.batches, asked.turns)
    show_rows(console, "the 29M model, with forced acceptance, in turns", served_29m, asked.markdown)
    tables = {"story": story, "29m": large, "served": served, "served_29m": served_29m}
    print(json.dumps({"bench": "spec", "draft": asked.draft, **summary(story, served), **tables}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
