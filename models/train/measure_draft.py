"""Measures a draft of the bundled model: `python -m models.train.measure_draft [eagle|eagle3|mtp]`.

The model answers held-out prompts, each token drawn as the product draws it: with noise keyed by (seed, choice,
position). Then the draft proposes at every place of these texts. A proposal is accepted while it equals the model's
draw, so the texts alone tell how many are. Both run in float32; the draft without pages.
Shapes: L rows, V vocabulary, S slots of a text.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from model.runner import ModelRunner
from model.sampler import sample
from model.sampling_input import SamplingInput
from models.train.draft import KINDS, Kind, features_of, load_draft
from models.train.draft_net import DraftNet
from models.train.draft_text import HELD_OUT_SEED, Text, answers, prompts, sampling
from models.train.recipe import SAMPLING
from models.train.train import STORY_FOLDER

MAX_STEPS = 6
MAX_TOKENS = 200
Choose = Callable[[Tensor, SamplingInput], Tensor]  # (L, V) logits -> (L,) tokens


@dataclass(frozen=True)
class Way:
    """How the model draws, and how the draft proposes."""

    draw: str
    propose: str
    temperature: float


def most_likely(logits_LV: Tensor, _: SamplingInput) -> Tensor:
    """The token with the largest logit."""
    return logits_LV.argmax(-1)


CHOOSE: dict[str, Choose] = {"greedy": sample, "inverse CDF": sample, "most likely": most_likely}
WAYS = (
    Way("greedy", "most likely", 0.0),
    *(Way("inverse CDF", proposed, SAMPLING["temperature"]) for proposed in ("most likely", "inverse CDF")),
)


@dataclass(frozen=True)
class Figures:
    """What a way comes to."""

    lengths: list[float]  # mean accepted length, bonus included, with 1, 2, ... steps
    shares: list[float]  # of the launches with MAX_STEPS steps: those that accept the 1st, 2nd, ... proposal


def measure(kind: Kind, num_texts: int, ways: Sequence[Way] = WAYS, folder: Path | None = None) -> dict[Way, Figures]:
    """The figures of every way on the same prompts."""
    runner = ModelRunner.load(STORY_FOLDER, device="cpu", dtype="float32")
    target = AutoModelForCausalLM.from_pretrained(STORY_FOLDER, dtype=torch.float32).eval()
    net = load_draft(kind, folder or kind.folder)
    asked = prompts(HELD_OUT_SEED, num_texts)
    written: dict[str, list[Text]] = {}
    figures_of = {}
    for way in ways:
        if way.draw not in written:
            written[way.draw] = answers(runner, asked, _drawing(way), MAX_TOKENS)
        texts = written[way.draw]
        right = [is_right(net, target, kind, text, number, way) for number, text in enumerate(texts)]
        figures_of[way] = figures(right, texts)
    return figures_of


def _drawing(way: Way) -> Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]:
    """The way's draw for draft_text.answers: text i has seed i."""
    choose = CHOOSE[way.draw]
    return lambda logits_LV, texts, positions: choose(
        logits_LV, sampling([way.temperature] * len(texts), texts, positions)
    )


@torch.inference_mode()
def is_right(net: DraftNet, target: PreTrainedModel, kind: Kind, text: Text, seed: int, way: Way) -> list[list[bool]]:
    """By draft step and slot: whether the proposal that a chain's step makes at slot p is token p + 2.

    A chain goes on only behind accepted proposals, so all its tokens are the text's.
    """
    ids_S = torch.tensor(text.ids)
    embedding_VE = target.get_input_embeddings().weight
    features_1SF, _ = features_of(target, ids_S[None], kind)
    outputs = net.unroll(F.embedding(ids_S[None, 1:-1], embedding_VE), features_1SF[:, :-2], MAX_STEPS)
    positions = range(2, len(ids_S))
    s = sampling([way.temperature] * len(positions), [seed] * len(positions), positions)
    return [(CHOOSE[way.propose](net.logits(output[0], embedding_VE), s) == ids_S[2:]).tolist() for output in outputs]


def figures(right: Sequence[Sequence[Sequence[bool]]], texts: Sequence[Text]) -> Figures:
    """The means over all texts. Pure."""
    lengths = []
    most = len(right[0])  # steps; a draft of several layers has as many
    for num_steps in range(1, most + 1):
        runs = [accepted(is_right, text, num_steps) for is_right, text in zip(right, texts, strict=True)]
        num_tokens = sum(len(text.ids) - text.num_prompt - 1 for text in texts)  # prefill draws the first
        lengths.append(num_tokens / sum(map(len, runs)))
    all_runs = [run for of_text in runs for run in of_text]
    shares = [sum(run > position for run in all_runs) / len(all_runs) for position in range(most)]
    return Figures(lengths, shares)


def accepted(is_right: Sequence[Sequence[bool]], text: Text, num_steps: int) -> list[int]:
    """How many proposals each launch of a text accepts. Pure.

    The launch that follows token m makes its first proposal at slot m - 1. The end of the text cuts the last one.
    """
    runs = []
    newest = text.num_prompt
    while newest < len(text.ids) - 1:
        count = 0
        most = min(num_steps, len(text.ids) - 1 - newest)
        while count < most and is_right[count][newest - 1 + count]:
            count += 1
        runs.append(count)
        newest += count + 1
    return runs


def show(console: Console, figures_of: dict[Way, Figures]) -> None:
    """Two tables."""
    most = max(len(figures.lengths) for figures in figures_of.values())
    steps = [str(step + 1) for step in range(most)]
    lengths = Table("the model draws", "the draft proposes", *steps, title="mean accepted length, by number of steps")
    shares = Table("the model draws", "the draft proposes", *steps, title=f"accepted by position, {most} steps")
    for way, figures in figures_of.items():
        lengths.add_row(way.draw, way.propose, *(f"{length:.2f}" for length in figures.lengths))
        shares.add_row(way.draw, way.propose, *(f"{share:.0%}" for share in figures.shares))
    console.print(lengths)
    console.print(shares)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how many proposals of a draft the bundled model accepts.")
    parser.add_argument("kind", choices=KINDS, nargs="?", default="eagle", help="default: %(default)s")
    parser.add_argument("--folder", type=Path, help="the draft's folder (default: that of its kind)")
    parser.add_argument("--texts", type=int, default=400, help="held-out prompts (default: %(default)s)")
    arguments = parser.parse_args()
    show(Console(width=120, highlight=False), measure(KINDS[arguments.kind], arguments.texts, folder=arguments.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
