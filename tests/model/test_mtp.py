"""MTP layers in the target's folder equal an independent float32 reference, one by one and as a chain."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.mtp import MtpDraft
from model.runner import DraftSource, ModelRunner
from protocol.errors import CheckpointError
from protocol.fingerprint import difference
from protocol.kv_layout import LayerGroup
from testkit.checkpoints import Architecture, greedy_reference, make_checkpoint
from tests.drafts import add_mtp
from tests.model.driving import Lanes, random_prompt
from tests.model.speculating import (
    NUM_LAYERS,
    NUM_TOKENS,
    Chain,
    assert_near,
    edit_config,
    load_mtp,
    loaded_mtp,
    true_features,
)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [NUM_TOKENS, 7, 1])
def test_hidden_states_and_logits_of_every_layer(
    tmp_path: Path, kind: Architecture, page_size: int, chunk: int
) -> None:
    """Slot i of layer j reads the token at i + 1 + j, and the hidden state that layer j - 1 gave at slot i."""
    runner, reference = loaded_mtp(tmp_path, kind)
    draft = runner.draft
    assert isinstance(draft, MtpDraft)
    tokens = random_prompt(NUM_TOKENS + NUM_LAYERS, 307, 5)
    ids = torch.tensor(tokens)
    hidden_SE = true_features(tmp_path, tokens[:NUM_TOKENS], ())
    expected = [(torch.empty(0), hidden_SE)]
    for index in range(NUM_LAYERS):
        expected.append(reference.run(ids[1 + index :][:NUM_TOKENS], expected[-1][1], index))

    lanes = Lanes(runner, page_size, poison=True)
    lane = lanes.lane(tokens[:NUM_TOKENS], 8)
    found = [[] for _ in range(NUM_LAYERS)]  # type: list[list[torch.Tensor]]
    while lane.done < NUM_TOKENS:
        count = min(chunk, NUM_TOKENS - lane.done)
        inp = lanes.model_input(*(([(lane, count)], []) if count > 1 else ([], [lane])))
        _, hidden_TE = runner.forward_with_features(inp, lanes.kv)
        for index in range(NUM_LAYERS):
            after_T = ids[lane.done + 1 + index :][:count]
            hidden_TE = draft.run_layer(index, replace(inp, input_ids_T=after_T), hidden_TE, lanes.kv)
            found[index].append(hidden_TE)
        lane.done += count
    for index in range(NUM_LAYERS):
        hidden_SE = torch.cat(found[index])
        assert_near(hidden_SE, expected[1 + index][1])
        assert_near(draft.logits(hidden_SE), expected[1 + index][0])


def test_forward_is_the_first_layer_and_changes_no_token(tmp_path: Path) -> None:
    _, reference = loaded_mtp(tmp_path, "qwen3")
    runner = ModelRunner.load(tmp_path, device="cpu", dtype="float32", draft=DraftSource("mtp", tmp_path))
    assert runner.kv_layout(4).groups[1] == LayerGroup(1, 2, 16, lookahead=1)
    prompt = random_prompt(11, 307, 2)
    one = Chain(runner, prompt, 30)
    logits_SV, hidden_SE = reference.run(torch.tensor(one.tokens[1:]), true_features(tmp_path, prompt, ()))
    assert one.proposal == int(logits_SV[-1].argmax())
    assert_near(one.hidden_1E, hidden_SE[-1:])
    while len(one.tokens) < 40:
        one.step(3)
    assert one.tokens[11:39] == greedy_reference(tmp_path, [prompt], 28)[0]


def test_its_kv_and_its_fingerprint(tmp_path: Path) -> None:
    runner, _ = loaded_mtp(tmp_path / "three", "qwen3")
    plain = ModelRunner.load(tmp_path / "three", device="cpu", dtype="float32")
    groups = runner.kv_layout(16).groups
    assert groups == (*plain.kv_layout(16).groups, LayerGroup(NUM_LAYERS, 2, 16, lookahead=NUM_LAYERS))
    tensors = runner.checkpoint.tensors.items()
    in_layers = sum(math.prod(shape) for name, (_, shape) in tensors if name.startswith("model.mtp_layers."))
    assert runner.private_weight_bytes == plain.private_weight_bytes
    assert runner.mapped_weight_bytes == plain.mapped_weight_bytes + 4 * in_layers
    assert (
        difference(runner.fingerprint(), plain.fingerprint(), "p", "d")
        == "--speculative-algorithm is mtp on p, none on d"
    )
    assert difference(runner.fingerprint(), load_mtp(tmp_path / "three").fingerprint(), "p", "d") is None
    seen = list[int]()
    lanes = Lanes(runner, 4)
    inp = lanes.model_input([(lanes.lane([1, 2, 3], 1), 3)], [])
    draft = runner.draft
    assert draft is not None
    for index in (2, 0):
        draft.run_layer(index, inp, torch.zeros(3, 48), lanes.kv, seen.append)
    assert seen == [5, 3]


def test_layers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(CheckpointError) as caught:
            load_mtp(tmp_path)
        return str(caught.value)

    make_checkpoint(tmp_path, "llama")
    assert "this model has no draft layers (num_nextn_predict_layers of config.json)" in refused()
    add_mtp(tmp_path, 2)
    edit_config(tmp_path, num_nextn_predict_layers=1)
    assert "got tensor model.mtp_layers.1." in refused() and "those that 1 draft layers" in refused()
    edit_config(tmp_path, num_nextn_predict_layers=3)
    assert "tensor model.mtp_layers.2.input_layernorm.weight of shape [48] is missing" in refused()
    edit_config(tmp_path, num_nextn_predict_layers=2)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.mtp_layers.1.input_proj.weight"
    save_file(tensors | {name: tensors[name][:, :48].contiguous()}, tmp_path / "model.safetensors")
    assert f"{name}: got shape [48, 48], config.json implies [48, 96]" in refused()


def test_a_mimo_is_a_qwen2_with_draft_layers(tmp_path: Path) -> None:
    runner, _ = loaded_mtp(tmp_path, "qwen2")
    assert runner.config.architecture == "mimo" and runner.config.attention.qkv_bias
    prompt = random_prompt(20, 307, 1)
    assert Lanes(runner, 4).generate(prompt, 12) == greedy_reference(tmp_path, [prompt], 12)[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(tmp_path: Path, dtype: str) -> None:
    """Greedy tokens are the target's own, and hidden states are near those in float32."""
    loaded_mtp(tmp_path, "qwen3")
    prompt = random_prompt(11, 307, 2)
    wide, narrow = (
        ModelRunner.load(tmp_path, device="cpu", dtype=each, draft=DraftSource("mtp", tmp_path))
        for each in ("float32", dtype)
    )
    assert narrow.kv_layout(4).dtype == dtype
    one, exact = Chain(narrow, prompt, 30), Chain(wide, prompt, 30)
    distance = (one.hidden_1E.float() - exact.hidden_1E).norm() / exact.hidden_1E.norm()
    assert float(distance) < 0.1
    for _ in range(4):
        one.step(3)
    assert one.tokens[11:] == Lanes(narrow, 4).generate(prompt, len(one.tokens) - 11)
