"""All layers in one call give the bits of the layers one by one: batches, threads, trees, families of models."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention_cpu import CpuPlan
from model.cpu_layers import is_decodes
from model.inputs import ModelInput
from model.runner import ModelRunner
from testkit.checkpoints import Architecture, make_checkpoint
from tests.model.driving import Lanes, random_prompt

pytestmark = pytest.mark.usefixtures("rows")


def load(folder: Path, *, in_place: bool = False) -> ModelRunner:
    """`in_place`: with float32 weights, which stay in the file."""
    runner = ModelRunner.load(folder, device="cpu", dtype="float32" if in_place else "bfloat16")
    if not in_place and not runner.packing.narrow:
        pytest.skip("this CPU has no instructions for the products")
    return runner


def one_by_one(runner: ModelRunner) -> ModelRunner:
    return replace(runner, decoder=replace(runner.decoder, at_once=None))


def decodes(lanes: Lanes, lengths: tuple[int, ...]) -> ModelInput:
    """Decodes of lanes whose prompts have these lengths, and are computed."""
    made = [lanes.lane(random_prompt(length, 307, length), 4) for length in lengths]
    for lane in made:
        lanes.runner.forward(lanes.model_input([(lane, len(lane.tokens) - 1)], []), lanes.kv)
        lane.done = len(lane.tokens) - 1
    return lanes.model_input([], made)


def logits(runner: ModelRunner, lanes: Lanes, inp: ModelInput) -> tuple[Tensor, Tensor]:
    """The logits, and the KV that the forward has left."""
    found = runner.forward(inp, lanes.kv)
    return found, lanes.kv.device_bytes.clone()


@pytest.mark.parametrize(
    "arch, in_place",
    [
        *product(("llama", "qwen2", "qwen3", "mistral_window", "qwen3_window"), (False,)),
        *product(("qwen3_moe", "mixtral", "glm4_moe"), (False, True)),
    ],
)
@pytest.mark.parametrize("lengths", [(9,), (40, 7, 33), tuple(range(2, 22))])
def test_the_same_bits_as_one_by_one(
    tmp_path: Path, arch: Architecture, in_place: bool, lengths: tuple[int, ...]
) -> None:
    runner = load(make_checkpoint(tmp_path / "m", arch), in_place=in_place)
    assert runner.decoder.at_once is not None
    lanes = Lanes(runner, 16)
    inp = decodes(lanes, lengths)
    expected = logits(one_by_one(runner), lanes, inp)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for found, known in zip(logits(runner, lanes, inp), expected, strict=True):
                assert torch.equal(found, known)
    finally:
        torch.set_num_threads(before)


def test_a_row_has_the_bits_that_it_has_alone(tmp_path: Path) -> None:
    """Beside others, and as the last row of its prompt."""
    runner = load(make_checkpoint(tmp_path / "m", "qwen3"))
    lanes = Lanes(runner, 16)
    inp = decodes(lanes, (40, 7, 333))
    together = runner.forward(inp, lanes.kv)
    for row in range(3):
        one = inp.mapped(lambda column, row=row: column[row : row + 1])  # type: ignore[misc]
        alone = replace(one, num_decodes=1, logit_indices_L=torch.zeros(1, dtype=torch.int64))
        assert torch.equal(runner.forward(alone, lanes.kv)[0], together[row])


@pytest.mark.parametrize("arch", ["llama", "qwen3", "mistral_window", "qwen3_window"])
def test_a_token_has_the_bits_that_it_has_in_any_width(tmp_path: Path, arch: Architecture) -> None:
    """Tokens of two requests, one at a time, and several of each in one launch: there a token reads the KV of those
    before it, which the same launch has written."""
    runner = load(make_checkpoint(tmp_path / "m", arch))
    lanes = Lanes(runner, 16, poison=True)
    starts, width = (30, 7), 12
    made = [lanes.lane(random_prompt(start + width, 307, start), 0) for start in starts]
    runner.forward(lanes.model_input([(lane, start) for lane, start in zip(made, starts, strict=True)], []), lanes.kv)

    def decoded(at_once: int) -> Tensor:
        found = []
        for first in range(0, width, at_once):
            launches = []
            for step in range(first, first + at_once):
                for lane, start in zip(made, starts, strict=True):
                    lane.done = start + step
                launches.append(lanes.model_input([], made))
            together: dict[str, Any] = {
                name: torch.cat([getattr(inp, name) for inp in launches])
                for name in ("input_ids_T", "positions_T", "slots_T", "page_table_BP", "seq_lens_B")
            }
            num = at_once * len(made)
            inp = replace(launches[-1], **together, num_decodes=num, logit_indices_L=torch.arange(num))
            found.append(runner.forward(inp, lanes.kv))
        return torch.cat(found)

    expected, kv = decoded(1), lanes.kv.device_bytes.clone()
    for at_once in (2, 3, 4, 6, 12):
        assert torch.equal(decoded(at_once), expected) and torch.equal(lanes.kv.device_bytes, kv)


def test_nodes_of_trees(tmp_path: Path) -> None:
    runner = load(make_checkpoint(tmp_path / "m", "qwen3"))
    lanes = Lanes(runner, 16)
    inp = replace(
        decodes(lanes, (40, 7, 33)),
        tree_starts_D=torch.tensor([30, 2, 33]),
        tree_bits_D=torch.tensor([0b1010000001, 0b10001, 1]),
    )
    expected = logits(one_by_one(runner), lanes, inp)
    assert torch.equal(logits(runner, lanes, inp)[0], expected[0])
    whole = replace(inp, tree_starts_D=None, tree_bits_D=None)
    assert not torch.equal(runner.forward(whole, lanes.kv), expected[0])


@pytest.mark.parametrize("layers", [(0,), (2,), (0, 1, 2), (1, 2)])
def test_features_are_the_inputs_of_layers(tmp_path: Path, layers: tuple[int, ...]) -> None:
    runner = load(make_checkpoint(tmp_path / "m", "qwen3"))
    lanes = Lanes(runner, 16)
    inp = decodes(lanes, (40, 7, 33))

    def features(of: ModelRunner) -> tuple[Tensor, Tensor]:
        return of.decoder.hidden_with_features(inp, lanes.kv, of.attention, None, layers)

    expected = features(one_by_one(runner))
    assert expected[1].shape[1] == len(layers) * runner.config.hidden_size
    told: list[int] = []
    runner.threads.before_long_call = lambda: told.append(1)
    for found, known in zip(features(runner), expected, strict=True):
        assert torch.equal(found, known)
    assert told == [1], "it is one call"


def test_a_layer_with_a_part_that_c_does_not_have_is_not_for_c(tmp_path: Path) -> None:
    layer = load(make_checkpoint(tmp_path / "dense", "qwen3")).decoder.layers[0]
    norms = torch.ones(4 * 16), torch.ones(2 * 16)
    together = replace(layer, mixer=replace(layer.mixer, qk_norm_ND=None, norms_before=norms))
    assert layer.in_c is not None and together.in_c is None
    gemma = load(make_checkpoint(tmp_path / "gemma", "gemma3")).decoder
    assert gemma.at_once is None and all(layer.in_c is None for layer in gemma.layers)
    experts = load(make_checkpoint(tmp_path / "experts", "minimax_m2")).decoder
    assert all(layer.in_c is None for layer in experts.layers) and experts.at_once is None


def test_only_decodes_are_one_call(tmp_path: Path) -> None:
    """A chunk reports its layers and attends by torch, so such a forward runs layer by layer. It gives right tokens."""
    runner = load(make_checkpoint(tmp_path / "m", "qwen3"))
    at_once = runner.decoder.at_once
    assert at_once is not None and not is_decodes(None) and not is_decodes(CpuPlan((), ()))
    lanes = Lanes(runner, 16)
    inp = decodes(lanes, (12,))
    assert is_decodes(runner.attention.plan(inp, lanes.kv.layout.layer(0)))
    written: list[int] = []
    assert torch.equal(runner.forward(inp, lanes.kv, written.append), runner.forward(inp, lanes.kv))
    assert written == list(range(runner.config.num_layers))

    prompt, apart = lanes.lane(random_prompt(20, 307, 1), 4), lanes.lane(random_prompt(30, 307, 2), 4)
    lanes.runner.forward(lanes.model_input([(apart, 29)], []), lanes.kv)
    apart.done = 29
    mixed = lanes.model_input([(prompt, 20)], [apart])
    assert not is_decodes(runner.attention.plan(mixed, lanes.kv.layout.layer(0)))
    decode = runner.forward(lanes.model_input([], [apart]), lanes.kv)
    torch.testing.assert_close(runner.forward(mixed, lanes.kv)[1:], decode)


def test_what_waits_is_told_before_the_layers(tmp_path: Path) -> None:
    """Once a forward: of decodes, and of chunks."""
    runner = load(make_checkpoint(tmp_path / "m", "qwen3"))
    lanes = Lanes(runner, 16)
    inp = decodes(lanes, (12,))
    prompt = lanes.lane(random_prompt(20, 307, 1), 4)
    told: list[Tensor] = []
    runner.threads.before_long_call = lambda: told.append(lanes.kv.device_bytes.clone())
    for each in (inp, lanes.model_input([(prompt, 20)], [])):
        told.clear()
        before = lanes.kv.device_bytes.clone()
        runner.forward(each, lanes.kv)
        assert len(told) == 1 and torch.equal(told[0], before) and not torch.equal(lanes.kv.device_bytes, before)
