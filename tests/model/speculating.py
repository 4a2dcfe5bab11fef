"""Drives a target and its draft by hand through one request: chunks of a prompt, then draft, verify, extend."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from model.cuda_capture import Run
from model.draft import first_layer
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import DraftSource, ModelRunner, Runner
from testkit.checkpoints import Architecture, make_checkpoint
from testkit.inputs import decodes
from tests.drafts import DraftReference, add_mtp
from tests.model.driving import Lanes


class Chain:
    """One request. Tests spoil its fields between calls: the pages of `kv`, `proposal`, `hidden_1E`."""

    def __init__(self, runner: Runner, prompt: Sequence[int], room: int, page_size: int = 4, chunk: int = 0) -> None:
        """`room` is how many tokens it may generate. `chunk` is the size of the prompt's chunks; 0: one chunk."""
        assert runner.draft is not None
        self.runner, self.draft, self.page_size = runner, runner.draft, page_size
        self.lanes = Lanes(runner, page_size, num_pages=3 + (len(prompt) + room + 16) // page_size, poison=True)
        self.kv: PagedKv = self.lanes.kv
        self.lane = self.lanes.lane(prompt, room + 16)
        self.proposal, self.hidden_1E = -1, torch.zeros(1, self.draft.hidden_size)
        self._prefill(chunk or len(prompt))

    @property
    def tokens(self) -> list[int]:
        """All known tokens; the last one has no KV yet."""
        return self.lane.tokens

    def _prefill(self, chunk: int) -> None:
        lane, length = self.lane, len(self.lane.tokens)
        while lane.done < length:
            count = min(chunk, length - lane.done)
            inp = self.lanes.model_input([(lane, count)], [])
            logits_LV, features_TF = self.runner.forward_with_features(inp, self.kv)
            lane.tokens += [int(row) for row in logits_LV.argmax(-1)]
            lane.done += count
            after = torch.tensor(lane.tokens[lane.done - count + 1 : lane.done + 1])
            self.extend(replace(inp, input_ids_T=after), features_TF, count - 1)

    def extend(self, inp: ModelInput, features_TF: Tensor, index: int) -> None:
        """The draft's forward behind a target's, for the next proposal at row `index`."""
        wanted = replace(inp, logit_indices_L=torch.tensor([index]))
        logits_1V, self.hidden_1E = first_layer(self.draft, wanted, self.draft.fuse(features_TF), self.kv)
        self.proposal = int(logits_1V.argmax())

    def rows(self, ids: Sequence[int], first: int) -> ModelInput:
        """Decode rows of this request for `ids` at positions from `first`, all wanted."""
        positions_T = torch.arange(first, first + len(ids))
        return decodes(torch.tensor(ids), positions_T, torch.tensor([self.lane.pages] * len(ids)), self.page_size)

    def step(self, steps: int, *, extends: bool = True) -> int:
        """One step of a chain with `steps` proposals. Returns how many were accepted.

        `extends` False leaves out the last forward of the draft.
        """
        done, proposals, hidden_1E = self.lane.done, [self.proposal], self.hidden_1E
        for index in range(steps - 1):
            inp = self.rows([max(0, proposals[-1])], done + index)
            logits_1V, hidden_1E = first_layer(self.draft, inp, hidden_1E, self.kv)
            proposals.append(int(logits_1V.argmax()))

        verify = self.rows([self.tokens[-1], *(max(0, each) for each in proposals)], done)
        logits_LV, features_TF = self.runner.forward_with_features(verify, self.kv)
        drawn_L = logits_LV.argmax(-1)
        accepted = next((at for at, each in enumerate(proposals) if each != int(drawn_L[at])), steps)

        self.lane.tokens += drawn_L[: accepted + 1].tolist()
        self.lane.done += accepted + 1
        if extends:
            self.extend(replace(verify, input_ids_T=drawn_L), features_TF, accepted)
        return accepted


def true_features(folder: Path, tokens: list[int], layers: tuple[int, ...]) -> Tensor:
    """What transformers has before these layers, side by side; without layers the output of the final norm."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([hidden[layer][0] for layer in layers], -1) if layers else hidden[-1][0]


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert torch.equal(found.isinf(), expected.isinf())
    finite = expected.isfinite()
    assert float((found - expected)[finite].abs().max()) < 2e-5 * max(1.0, float(expected[finite].abs().max()))


def again(run: Run) -> Run:
    """Like a graph: the same work, on memory that stays where it is."""
    return run


NUM_TOKENS, NUM_LAYERS = 41, 3
MIMO = "MiMoForCausalLM"


def loaded_mtp(folder: Path, kind: Architecture, num_layers: int = NUM_LAYERS) -> tuple[ModelRunner, DraftReference]:
    """A target with `num_layers` draft layers, and their reference. A qwen2 becomes a MiMo."""
    add_mtp(make_checkpoint(folder, kind), num_layers)
    if kind == "qwen2":
        edit_config(folder, architectures=[MIMO])
    return load_mtp(folder), DraftReference(folder, folder)


def load_mtp(folder: Path, **options: Any) -> ModelRunner:
    draft = DraftSource("mtp", folder, NUM_LAYERS)
    return ModelRunner.load(folder, device="cpu", dtype="float32", draft=draft, **options)


def edit_config(folder: Path, **changed: object) -> None:
    """Other values in config.json; ... takes a field out."""
    path = folder / "config.json"
    fields = {**json.loads(path.read_text()), **changed}
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))
