"""Trains a draft of the bundled model: `python -m models.train.draft [eagle|eagle3|mtp]`.

It writes the draft's folder, or the draft layers (mtp) into the target's. The target stays as it is; the draft learns
its distribution on its own answers (draft_text.py). One seed decides text, initial weights and order, as in train.py.
Figures on the result: see measure_draft.py.
Shapes: R texts, S slots, E hidden, V vocabulary, N slots whose prediction counts.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from model.runner import ModelRunner
from models.train.draft_net import DraftNet, Eagle3Net, EagleNet
from models.train.draft_text import Batch, Text, answers, batches, mixed_draw, prompts
from models.train.mtp_net import MtpNet
from models.train.recipe import Recipe, Shape, config_json
from models.train.train import (
    STORY_FOLDER,
    advance,
    machine,
    make_optimizers,
    prepare,
    save_weights,
    telling,
    weights_hash,
)  # fmt: skip

CHECK_STEPS = 3
MTP_PREFIX = "model.mtp_layers."
_LAYER_SCALE = 10.0  # of what the target's layers read


@dataclass(frozen=True)
class Kind:
    """One sort of draft. It reads the inputs of the target's layers `layer_ids`; the number behind the last layer's
    stands for the output of the final norm."""

    folder: Path
    architecture: str
    intermediate_size: int
    layer_ids: tuple[int, ...]
    num_known: int | None = None  # tokens of its own head; None: the target's head
    num_layers: int = 1

    @property
    def is_mtp(self) -> bool:
        """Whether its layers are in the target's folder."""
        return self.folder == STORY_FOLDER


KINDS = {
    "eagle": Kind(STORY_FOLDER.with_name("story-eagle"), "Qwen3ForCausalLMEagle", 960, (Shape().num_layers,)),
    "eagle3": Kind(STORY_FOLDER.with_name("story-eagle3"), "Qwen3ForCausalLMEagle3", 768, (1, 3, 4), 512),
    "mtp": Kind(STORY_FOLDER, "Qwen3ForCausalLM", Shape().intermediate_size, (Shape().num_layers,), num_layers=2),
}


@dataclass(frozen=True)
class DraftRecipe(Recipe):
    """How the draft's weights come about. A step sees texts of `rows_per_step * row_tokens` tokens together."""

    kind: Kind = KINDS["eagle"]
    seed: int = 16
    num_texts: int = 2400
    max_tokens: int = 200
    num_steps: int = 500
    rows_per_step: int = 4
    matrix_lr: float = 0.03
    num_threads: int = 1
    unrolled: tuple[int, int] = (2, 4)  # draft steps that are trained together: in the first half, in the second
    step_weight: float = 0.8  # of a draft step's loss beside that of the step before

    @property
    def draft_shape(self) -> Shape:
        """The target's sizes, with the draft's layers."""
        return replace(self.shape, num_layers=self.kind.num_layers, intermediate_size=self.kind.intermediate_size)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the bundled model's draft and write its folder.")
    parser.add_argument("kind", choices=KINDS, nargs="?", default="eagle", help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="folder to write (default: its folder beside the model's)")
    parser.add_argument(
        "--check", action="store_true", help=f"train {CHECK_STEPS} steps on few texts, print losses and hash"
    )
    arguments = parser.parse_args()
    if arguments.check:
        print(json.dumps(check(KINDS[arguments.kind]), indent=2))
        return 0
    started_s = time.monotonic()
    recipe = DraftRecipe(kind=KINDS[arguments.kind])
    net = train(recipe, telling(every=20))
    folder = arguments.out or recipe.kind.folder
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(draft_config_json(recipe), indent=2)
    (folder / "config.json").write_text(f"{config}\n", encoding="utf-8")
    save_weights(net, folder, beside=target_weights() if recipe.kind.is_mtp else None)
    print(f"wrote {folder}, {time.monotonic() - started_s:.0f} s, hash {weights_hash(net)}")
    return 0


def check(kind: Kind) -> dict[str, object]:
    """A few steps of the recipe on few texts: the losses of each, and a hash of the weights they lead to."""
    seen: list[list[float]] = []
    recipe = DraftRecipe(kind=kind, num_texts=32, max_tokens=32, num_steps=CHECK_STEPS)
    net = train(recipe, lambda _, losses: seen.append(losses))
    losses = [[round(loss, 4) for loss in losses] for losses in seen]
    return {"machine": machine(), "losses": losses, "weights_sha256": weights_hash(net)}


def draft_config_json(recipe: DraftRecipe) -> dict[str, object]:
    """config.json of the draft: the target's fields for one layer, and what is the kind's."""
    config = config_json(recipe.draft_shape) | {"architectures": [recipe.kind.architecture]}
    if recipe.kind.is_mtp:
        return config_json(recipe.shape) | {"num_nextn_predict_layers": recipe.kind.num_layers}
    if recipe.kind.num_known is None:
        return config
    own = {"draft_vocab_size": recipe.kind.num_known, "eagle_aux_hidden_state_layer_ids": list(recipe.kind.layer_ids)}
    return config | {"tie_word_embeddings": False} | own


def train(recipe: DraftRecipe, on_step: Callable[[int, list[float]], object]) -> DraftNet:
    """The draft after the recipe's steps, in float32. `on_step` gets the loss of every draft step."""
    prepare(recipe)
    target = AutoModelForCausalLM.from_pretrained(STORY_FOLDER, dtype=torch.float32).eval()
    embedding_VE = target.get_input_embeddings().weight.detach()
    texts = own_texts(recipe)
    tokens_per_step = recipe.rows_per_step * recipe.row_tokens
    lessons = [lesson_of(target, batch, recipe.kind) for batch in batches(texts, tokens_per_step)]
    net = new_net(recipe, texts, embedding_VE)
    optimizers = make_optimizers(net, recipe)
    order: list[Lesson] = []
    rng = Random(recipe.seed)
    for step in range(recipe.num_steps):
        order = order or rng.sample(lessons, len(lessons))
        num_draft_steps = recipe.unrolled[2 * step >= recipe.num_steps]
        losses = losses_of(net, embedding_VE, order.pop(), num_draft_steps)
        torch.stack([loss * recipe.step_weight**index for index, loss in enumerate(losses)]).sum().backward()
        advance(net, optimizers, recipe, step)
        on_step(step, [loss.item() for loss in losses])
    return net


def new_net(recipe: DraftRecipe, texts: Sequence[Text], embedding_VE: Tensor) -> DraftNet:
    """Random weights that keep the scale of what they read, about 1: fc makes up for other scales.

    A head of its own begins as that of the target, for the tokens that the target's answers have most often.
    """
    counts = Counter(token for text in texts for token in text.ids[text.num_prompt :])
    often = sorted(range(len(embedding_VE)), key=lambda token: -counts[token])[: recipe.kind.num_known]
    net = net_of(recipe.kind, recipe.draft_shape, torch.tensor(sorted(often)))
    for weight in net.parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    with torch.no_grad():
        if isinstance(net, Eagle3Net):
            net.fc.weight /= _LAYER_SCALE
            net.lm_head.weight.copy_(embedding_VE[net.target_ids])
        elif isinstance(net, EagleNet):
            net.fc.weight[:, : net.shape.hidden_size] /= embedding_VE.square().mean().sqrt()
    return net


def net_of(kind: Kind, shape: Shape, known_ids: Tensor | None) -> DraftNet:
    """A draft of this kind. `known_ids`: the tokens that its own head knows, if it has one."""
    if kind.is_mtp:
        return MtpNet(shape)
    return EagleNet(shape) if kind.num_known is None or known_ids is None else Eagle3Net(shape, known_ids)


def own_texts(recipe: DraftRecipe) -> list[Text]:
    """The target's own answers to prompts of the recipe's seed."""
    runner = ModelRunner.load(STORY_FOLDER, device="cpu", dtype="float32")
    return answers(runner, prompts(recipe.seed, recipe.num_texts), mixed_draw, recipe.max_tokens)


class Lesson(NamedTuple):
    """A batch with what the target makes of it. Slot i predicts token i + 2 from token i + 1 and the feature at i."""

    next_ids_RS: Tensor
    features_RSF: Tensor
    counts_RS: Tensor  # True where token i + 2 is the target's own
    wanted_NE: Tensor  # the target's features at i + 1 of these slots


def lesson_of(target: PreTrainedModel, batch: Batch, kind: Kind) -> Lesson:
    features_RSF, final_RSE = features_of(target, batch.ids_RS, kind)
    counts_RS = batch.is_answer_RS[:, 2:]
    return Lesson(batch.ids_RS[:, 1:-1], features_RSF[:, :-2], counts_RS, final_RSE[:, 1:-1][counts_RS])


@torch.no_grad()
def features_of(target: PreTrainedModel, ids_RS: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The features (R, S, F) that the draft reads, and the output (R, S, E) of the target's final norm."""
    inputs = target.model(input_ids=ids_RS, use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([inputs[layer] for layer in kind.layer_ids], dim=-1), inputs[-1]


def losses_of(net: DraftNet, embedding_VE: Tensor, lesson: Lesson, num_steps: int) -> list[Tensor]:
    """Per draft step the cross-entropy against the target's distribution, a mean over the slots that count.

    Tokens that the draft does not know are left out.
    """
    wanted_NV = (lesson.wanted_NE @ embedding_VE.T).softmax(-1)[:, net.target_ids]
    outputs = net.unroll(F.embedding(lesson.next_ids_RS, embedding_VE), lesson.features_RSF, num_steps)
    return [
        F.cross_entropy(net.own_logits(output_RSE[lesson.counts_RS], embedding_VE), wanted_NV) for output_RSE in outputs
    ]


def target_weights() -> dict[str, Tensor]:
    """The target's own weights, without draft layers that were trained before."""
    weights = load_file(STORY_FOLDER / "model.safetensors")
    return {name: weight for name, weight in weights.items() if not name.startswith(MTP_PREFIX)}


def load_draft(kind: Kind, folder: Path) -> DraftNet:
    """The draft of a folder that this script wrote, in float32."""
    weights = load_file(folder / "model.safetensors")
    if kind.is_mtp:
        weights = {name: weight for name, weight in weights.items() if name.startswith(MTP_PREFIX)}
    net = net_of(kind, DraftRecipe(kind=kind).draft_shape, weights["t2d"].nonzero()[:, 0] if kind.num_known else None)
    net.load_state_dict(weights)
    return net.float().eval()


if __name__ == "__main__":
    sys.exit(main())
