"""Ranks of a group give the logits that one rank gives: with idle ranks, with other numbers of tokens, with drafts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.collectives import Collectives
from model.cpu_experts import CpuExperts
from model.inputs import ModelInput
from model.mlp import Mlp, Sharded
from model.runner import DraftSource, ModelRunner, Runner
from protocol.errors import ConfigError
from protocol.messages_group import StepShape
from testkit.checkpoints import OF_EXPERTS, WITH_WINDOWS, Architecture, make_checkpoint
from tests.doubles.hash_model import FakeRunner
from tests.drafts import make_draft
from tests.model.driving import Lanes, idle, random_prompt
from tests.model.ranks import MetCollectives, met, on_host
from tests.model.speculating import loaded_mtp

VOCAB = 307


class Script:
    """What one rank computes, step by step: its lanes are prompts of different lengths.

    "idle", "prompt", "decode", or "mixed": the rest of one prompt and a decode.
    """

    def __init__(self, runner: Runner, rank: int) -> None:
        self.lanes = Lanes(runner, 4, poison=True)
        for layer in range(self.lanes.kv.layout.num_layers):
            self.lanes.kv.layer(layer)[0].zero_()
        self.first = self.lanes.lane(random_prompt(7 + 3 * rank, VOCAB, rank), 20)
        self.second = self.lanes.lane(random_prompt(11 + rank, VOCAB, 10 + rank), 20)
        self.runner = runner

    def num_tokens(self, kind: str) -> int:
        """Of the next step of this kind."""
        left = len(self.second.tokens) - self.second.done
        return {"idle": 0, "prompt": len(self.first.tokens), "chunk": 4, "decode": 1, "mixed": left + 1}[kind]

    def input(self, kind: str) -> ModelInput:
        """The forward of this kind."""
        if kind == "idle":
            return idle()
        extends = {
            "prompt": [(self.first, len(self.first.tokens))],
            "chunk": [(self.second, 4)],
            "mixed": [(self.second, len(self.second.tokens) - self.second.done)],
        }
        return self.lanes.model_input(extends.get(kind, []), [self.first] if kind in ("decode", "mixed") else [])

    def run(self, kind: str, step: StepShape | None) -> Tensor:
        """The logits of the step."""
        logits_LV = self.runner.forward(replace(self.input(kind), step=step), self.lanes.kv)
        lanes = {"prompt": [self.first], "chunk": [], "decode": [self.first], "mixed": [self.second, self.first]}
        for row, lane in enumerate(lanes.get(kind, [])):
            lane.done = len(lane.tokens)
            lane.tokens.append(int(logits_LV[row].argmax()))
        if kind == "chunk":
            self.second.done += 4
        return logits_LV


SCRIPTS = (  # by step, what each rank does; of the columns, as many count as there are ranks
    ("prompt", "idle", "idle", "idle"),
    ("decode", "prompt", "idle", "prompt"),
    ("chunk", "decode", "prompt", "decode"),
    ("mixed", "chunk", "idle", "idle"),
    ("idle", "mixed", "decode", "chunk"),
    ("idle", "idle", "chunk", "mixed"),
    ("decode", "decode", "mixed", "idle"),
)


def assert_as_one_rank(size: int, folder: Path, scratch: Path, **options: Any) -> None:
    """Plays SCRIPTS with `size` ranks on this host, and each rank's part alone. Logits are close, tokens equal."""
    alone = [Script(ModelRunner.load(folder, device="cpu", dtype="float32", **options), rank) for rank in range(size)]
    steps, expected = list[StepShape](), list[list[Tensor]]()
    for number, kinds in enumerate(SCRIPTS, 1):
        counts = tuple(script.num_tokens(kind) for script, kind in zip(alone, kinds, strict=False))
        steps.append(StepShape(number, counts))
        expected.append([script.run(kind, None) for script, kind in zip(alone, kinds, strict=False)])

    def main(ranks: Collectives) -> list[Tensor]:
        runner = ModelRunner.load(folder, device="cpu", dtype="float32", collectives=ranks, **options)
        script = Script(runner, ranks.rank)
        return [script.run(kinds[ranks.rank], step) for kinds, step in zip(SCRIPTS, steps, strict=True)]

    found = on_host(size, scratch, main)
    for rank in range(size):
        for mine, theirs in zip(found[rank], expected, strict=True):
            torch.testing.assert_close(mine, theirs[rank], rtol=1e-4, atol=1e-4)
            assert torch.equal(mine.argmax(-1), theirs[rank].argmax(-1))


@pytest.mark.parametrize("cpu_kernels", [True, False])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_ranks_give_the_logits_of_one_rank(tmp_path: Path, arch: Architecture, size: int, cpu_kernels: bool) -> None:
    more: dict[str, Any] = {"mlp_bias": True} if arch == "llama" else {}
    folder = make_checkpoint(tmp_path / "model", arch, seed=3, intermediate_size=96, **more)
    assert_as_one_rank(size, folder, tmp_path, cpu_kernels=cpu_kernels)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("arch", [*OF_EXPERTS, *WITH_WINDOWS])
def test_ranks_of_every_family_give_the_logits_of_one_rank(tmp_path: Path, arch: Architecture, size: int) -> None:
    folder = make_checkpoint(tmp_path / "model", arch, seed=3)
    assert_as_one_rank(size, folder, tmp_path)


def test_packed_shares_give_about_the_same_logits(tmp_path: Path) -> None:
    """In bfloat16 parts are rounded, so logits are only near."""
    folder = make_checkpoint(tmp_path / "model", "qwen3", intermediate_size=96)
    whole = Script(ModelRunner.load(folder, device="cpu", dtype="bfloat16"), 0)
    expected_LV = whole.run("prompt", None)

    def main(ranks: Collectives) -> Tensor:
        runner = ModelRunner.load(folder, device="cpu", dtype="bfloat16", collectives=ranks)
        return Script(runner, ranks.rank).run("idle" if ranks.rank else "prompt", StepShape(1, (7, 0, 0)))

    found_LV, *others = on_host(3, tmp_path, main)
    assert whole.runner.private_weight_bytes and all(each.shape == (0, VOCAB) for each in others)
    assert float((found_LV - expected_LV).abs().max()) < 0.05 * float(expected_LV.abs().max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_rank_holds_its_share_of_the_mlps(tmp_path: Path, dtype: str) -> None:
    """bfloat16 is packed, and perhaps widened, so it is private memory; float32 is a view over the file."""
    folder = make_checkpoint(tmp_path, "qwen3", intermediate_size=96)
    whole = ModelRunner.load(folder, device="cpu", dtype=dtype)

    def main(ranks: MetCollectives) -> ModelRunner:
        return ModelRunner.load(folder, device="cpu", dtype=dtype, collectives=ranks)

    in_mlps = 3 * 3 * 48 * 96  # layers, linears, sizes
    item_bytes = 4 if dtype == "float32" or (whole.packing.widened and not whole.packing.narrow) else 2
    for size in (2, 3):
        for runner in met(size, main):
            both = runner.mapped_weight_bytes + runner.private_weight_bytes
            less = whole.mapped_weight_bytes + whole.private_weight_bytes - both
            assert less == in_mlps * item_bytes * (size - 1) // size
            assert (runner.packing.packed, runner.packing.widened) == (whole.packing.packed, whole.packing.widened)
            assert runner.fingerprint() == whole.fingerprint()
            assert runner.weights_info["ranks"] == size


def test_a_size_that_does_not_divide_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama")

    def main(ranks: MetCollectives) -> None:
        with pytest.raises(ConfigError, match="dp_size: got 3, expected a divisor of 80, the intermediate_size"):
            ModelRunner.load(folder, device="cpu", collectives=ranks)

    met(3, main)


@pytest.mark.parametrize("kind", ["mtp", "mtp with experts", "eagle"])
def test_a_draft_has_a_whole_feed_and_enters_no_collective(tmp_path: Path, kind: str) -> None:
    if kind != "eagle":
        arch: Architecture = "qwen2" if kind == "mtp" else "glm4_moe"
        num_layers = 3 if kind == "mtp" else 1
        loaded_mtp(tmp_path / "target", arch, num_layers)
        source = DraftSource("mtp", tmp_path / "target", num_layers)
    else:
        make_checkpoint(tmp_path / "target", "qwen3")
        source = DraftSource("eagle", make_draft(tmp_path / "draft", tmp_path / "target", "eagle", "qwen3"))

    def main(ranks: MetCollectives) -> None:
        runner = ModelRunner.load(tmp_path / "target", device="cpu", collectives=ranks, draft=source)
        assert runner.draft is not None
        kinds = CpuExperts if kind == "mtp with experts" else Mlp
        assert all(isinstance(layer.feed, kinds) and layer.feed.is_alone for layer in runner.draft.layers)
        assert all(isinstance(layer.feed, Sharded) for layer in runner.decoder.layers)

        script = Script(runner, ranks.rank)
        inp = replace(script.input("prompt"), step=StepShape(1, (7, 10)))
        _, features_TF = runner.forward_with_features(inp, script.lanes.kv)
        assert len(ranks.entered) == 2 * runner.config.num_layers
        for index in range(ranks.rank * runner.draft.num_layers):  # ranks may run different numbers of layers
            runner.draft.run_layer(index, inp, runner.draft.fuse(features_TF), script.lanes.kv)
        assert len(ranks.entered) == 2 * runner.config.num_layers

    met(2, main)


@pytest.mark.parametrize("fake", [True, False])
def test_every_forward_enters_two_collectives_a_layer_whatever_it_holds(tmp_path: Path, fake: bool) -> None:
    folder = make_checkpoint(tmp_path, "llama")

    def main(ranks: MetCollectives) -> None:
        runner: Runner = FakeRunner(VOCAB, 3, collectives=ranks)
        if not fake:
            runner = ModelRunner.load(folder, device="cpu", collectives=ranks)
        script = Script(runner, ranks.rank)
        for number, kinds in enumerate((("prompt", "idle"), ("idle", "prompt"), ("idle", "idle")), 1):
            counts = tuple({"idle": 0, "prompt": 7 + 3 * rank}[kind] for rank, kind in enumerate(kinds))
            script.run(kinds[ranks.rank], StepShape(number, counts))
            last = [(operation, step) for operation, step, _ in ranks.entered[6 * (number - 1) :]]
            assert last == [("gather", number), ("exchange", number)] * 3

    met(2, main)


def test_the_fake_model_gives_its_tokens_in_a_group_and_needs_its_step() -> None:
    def main(ranks: MetCollectives) -> None:
        runner = FakeRunner(VOCAB, 3, collectives=ranks)
        script = Script(runner, ranks.rank)
        prompt = list(script.first.tokens)
        script.run("prompt", StepShape(1, (7, 10)))
        script.run("decode", StepShape(2, (1, 1)))
        assert script.first.tokens[len(prompt) :] == runner.expected_tokens(prompt, 2)
        with pytest.raises(AssertionError, match="without the step of all ranks"):
            script.run("decode", None)

    met(2, main)


def test_the_fake_model_notices_tokens_that_do_not_come_back() -> None:
    class Losing(MetCollectives):
        """Gives zeros for what rank 1 has given."""

        def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
            """See Collectives."""
            taken_RPE = super().exchange(parts_RPE, step)
            taken_RPE[1] = 0
            return taken_RPE

    def main(ranks: MetCollectives) -> None:
        runner = FakeRunner(VOCAB, 3, collectives=Losing(ranks.meeting, ranks.rank))
        script = Script(runner, ranks.rank)
        prompt = list(script.first.tokens)
        script.run("prompt", StepShape(1, (7, 10)))
        assert script.first.tokens[len(prompt) :] != runner.expected_tokens(prompt, 1)

    met(2, main)
