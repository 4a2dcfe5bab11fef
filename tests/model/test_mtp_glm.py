"""The draft layer in the folder of a GLM-4.5 equals an independent float32 reference. What does not fit is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model import mtp
from model.checkpoint import open_checkpoint
from model.cpu_experts import CpuExperts
from model.mtp import MtpDraft
from model.runner import DraftSource, ModelRunner
from protocol.errors import CheckpointError
from protocol.kv_layout import LayerGroup
from runtime.draft_config import load_mtp_config
from testkit.checkpoints import greedy_reference, make_checkpoint
from tests.drafts import DraftReference, add_mtp
from tests.model.driving import Lanes, idle, random_prompt
from tests.model.speculating import NUM_TOKENS, Chain, edit_config, load_mtp, loaded_mtp, true_features
from tests.selecting import first

LAYER = "model.layers.3"  # behind those of the model, which has three
TABLES = {  # what each may repeat
    f"{LAYER}.embed_tokens.weight": "model.embed_tokens.weight",
    f"{LAYER}.shared_head.head.weight": "lm_head.weight",
}
VOCAB, HIDDEN = 307, 48


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    """A checkpoint of these tensors."""
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))


def draft_of(runner: ModelRunner) -> MtpDraft:
    assert isinstance(runner.draft, MtpDraft)
    return runner.draft


@pytest.mark.parametrize("in_c", first(1, [True, False]))
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [NUM_TOKENS, 7, 1])
def test_hidden_states_and_logits(tmp_path: Path, chunk: int, page_size: int, in_c: bool) -> None:
    """Slot i reads the token behind i and the output of the target's final norm at i."""
    _, reference = loaded_mtp(tmp_path, "glm4_moe", 1)
    runner = load_mtp(tmp_path, cpu_kernels=in_c)
    draft = draft_of(runner)
    assert isinstance(draft.layers[0].feed, CpuExperts) == in_c and len(draft.at_once) == in_c
    tokens = random_prompt(NUM_TOKENS + 1, VOCAB, 5)
    ids = torch.tensor(tokens)
    expected_SV, expected_SE = reference.run(ids[1:], true_features(tmp_path, tokens[:NUM_TOKENS], ()))

    lanes = Lanes(runner, page_size, poison=True)
    lane, found = lanes.lane(tokens[:NUM_TOKENS], 8), list[Tensor]()
    while lane.done < NUM_TOKENS:
        count = min(chunk, NUM_TOKENS - lane.done)
        inp = lanes.model_input(*(([(lane, count)], []) if count > 1 else ([], [lane])))
        _, hidden_TE = runner.forward_with_features(inp, lanes.kv)
        after_T = ids[lane.done + 1 :][:count]
        found.append(draft.run_layer(0, replace(inp, input_ids_T=after_T), hidden_TE, lanes.kv))
        lane.done += count
    assert_near(torch.cat(found), expected_SE)
    assert_near(draft.logits(torch.cat(found)), expected_SV)


def test_one_layer_proposes_several_tokens_and_changes_none(tmp_path: Path) -> None:
    """A step reads the proposal before it, and what the layer gave there behind its last norm."""
    runner, reference = loaded_mtp(tmp_path, "glm4_moe", 1)
    draft, prompt = draft_of(runner), random_prompt(11, VOCAB, 2)
    assert runner.kv_layout(4).groups[1] == LayerGroup(1, 2, 16, lookahead=1)
    one = Chain(runner, prompt, 30)
    after, hidden_SE = list(one.tokens[1:]), true_features(tmp_path, prompt, ())
    proposal, hidden_1E = one.proposal, one.hidden_1E
    for step in range(4):
        logits_SV, given_SE = reference.run(torch.tensor(after), hidden_SE)
        assert proposal == int(logits_SV[-1].argmax())
        assert_near(hidden_1E, given_SE[-1:])
        inp = one.rows([proposal], len(prompt) + step)
        after, hidden_SE = [*after, proposal], torch.cat((hidden_SE, given_SE[-1:]))
        hidden_1E = draft.run_layer(0, inp, hidden_1E, one.kv)
        proposal = int(draft.logits(hidden_1E).argmax())
    while len(one.tokens) < 40:
        one.step(3)
    assert one.tokens[11:39] == greedy_reference(tmp_path, [prompt], 28)[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tables", ["own", "repeated", "absent"])
def test_an_embedding_and_a_head_that_repeat_the_models_are_not_held_twice(
    tmp_path: Path, tables: str, dtype: str
) -> None:
    loaded_mtp(tmp_path, "glm4_moe", 1)
    tensors = load_file(tmp_path / "model.safetensors")
    others = {name: tensor for name, tensor in tensors.items() if name not in TABLES}
    repeated = {name: tensors[of].clone() for name, of in TABLES.items()}
    write(tmp_path, {"own": tensors, "repeated": others | repeated, "absent": others}[tables])
    source = DraftSource("mtp", tmp_path)
    plain, runner = (ModelRunner.load(tmp_path, device="cpu", dtype=dtype, draft=each) for each in (None, source))
    draft, decoder = draft_of(runner), runner.decoder
    assert (draft.embedding_VE is decoder.embedding_VE, draft.head is decoder.head) == ((tables != "own",) * 2)
    more = sum(taken.numbers for taken in runner.checkpoint.taken.values())
    more -= sum(taken.numbers for taken in plain.checkpoint.taken.values())
    of_layer = sum(t.numel() for name, t in tensors.items() if name.startswith(f"{LAYER}."))
    assert more == of_layer - (0 if tables == "own" else 2 * VOCAB * HIDDEN)
    if dtype == "float32":
        prompt = random_prompt(9, VOCAB, 1)
        one = Chain(runner, prompt, 4)
        features_SE = true_features(tmp_path, prompt, ())
        logits_SV, _ = DraftReference(tmp_path, tmp_path).run(torch.tensor(one.tokens[1:]), features_SE)
        assert one.proposal == int(logits_SV[-1].argmax())


def test_narrow_types_propose_nearly_the_same(tmp_path: Path) -> None:
    loaded_mtp(tmp_path, "glm4_moe", 1)
    prompt, source = random_prompt(11, VOCAB, 2), DraftSource("mtp", tmp_path)
    wide, narrow = (
        ModelRunner.load(tmp_path, device="cpu", dtype=each, draft=source) for each in ("float32", "bfloat16")
    )
    one, exact = Chain(narrow, prompt, 30), Chain(wide, prompt, 30)
    assert float((one.hidden_1E.float() - exact.hidden_1E).norm() / exact.hidden_1E.norm()) < 0.1
    for _ in range(4):
        one.step(3)
    assert one.tokens[11:] == Lanes(narrow, 4).generate(prompt, len(one.tokens) - 11)


@pytest.mark.parametrize("in_c", [True, False])
def test_no_tokens_write_nothing(tmp_path: Path, in_c: bool) -> None:
    loaded_mtp(tmp_path, "glm4_moe", 1)
    runner = load_mtp(tmp_path, cpu_kernels=in_c)
    draft, lanes, seen = draft_of(runner), Lanes(runner, 4), list[int]()
    before = lanes.kv.device_bytes.clone()
    for attends in (True, False):
        given = draft.run_layer(0, idle(), torch.empty(0, HIDDEN), lanes.kv, seen.append, attends=attends)
        assert given.shape == (0, HIDDEN)
    assert seen == [3, 3] and torch.equal(lanes.kv.device_bytes, before)


PARTS = {  # of each kind of tensor one, and its shape
    "enorm.weight": [48],
    "hnorm.weight": [48],
    "eh_proj.weight": [48, 96],
    "shared_head.norm.weight": [48],
    "input_layernorm.weight": [48],
    "post_attention_layernorm.weight": [48],
    "self_attn.q_proj.weight": [64, 48],
    "self_attn.k_proj.bias": [32],
    "self_attn.q_norm.weight": [16],
    "self_attn.o_proj.weight": [48, 64],
    "mlp.gate.weight": [8, 48],
    "mlp.gate.e_score_correction_bias": [8],
    "mlp.experts.7.up_proj.weight": [24, 48],
    "mlp.shared_experts.down_proj.weight": [48, 24],
}
OWN_TABLES = {"embed_tokens.weight": [307, 48], "shared_head.head.weight": [307, 48]}


def load_beside(folder: Path, target: ModelRunner) -> MtpDraft:
    """The draft in `folder`, for a model that is loaded already."""
    config, decoder = load_mtp_config(folder, target.config), target.decoder
    return mtp.load_mtp(open_checkpoint(folder), config, decoder, decoder.passes, target.attention)


def refused(folder: Path, target: ModelRunner | None = None) -> str:
    """The sentence with which the draft is refused, for this model or for that of the folder."""
    load: Callable[[], object] = partial(load_beside, folder, target) if target else partial(load_mtp, folder)
    with pytest.raises(CheckpointError) as caught:
        load()
    sentence = str(caught.value)
    assert sentence.startswith(str(folder)) and "\n" not in sentence and len(sentence) < 400
    return sentence


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The tensors of a folder that loads."""
    folder = make_checkpoint(tmp_path_factory.mktemp("whole"), "glm4_moe")
    add_mtp(folder, 1)
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose tensors tests replace."""
    folder = make_checkpoint(tmp_path_factory.mktemp("changed"), "glm4_moe")
    add_mtp(folder, 1)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """The model without a draft."""
    return ModelRunner.load(make_checkpoint(tmp_path_factory.mktemp("target"), "glm4_moe"), device="cpu")


@pytest.mark.parametrize("name", [*PARTS, *OWN_TABLES])
def test_a_tensor_of_another_shape_is_refused(
    folder: Path, target: ModelRunner, whole: dict[str, Tensor], name: str
) -> None:
    shape = {**PARTS, **OWN_TABLES}[name]
    write(folder, whole | {f"{LAYER}.{name}": whole[f"{LAYER}.{name}"][:-1].clone()})
    held = [shape[0] - 1, *shape[1:]]
    assert f"model.safetensors: {LAYER}.{name}: got shape {held}, config.json implies {shape}" in refused(
        folder, target
    )


@pytest.mark.parametrize("name", PARTS)
def test_a_tensor_that_is_missing_is_named_with_its_shape(
    folder: Path, target: ModelRunner, whole: dict[str, Tensor], name: str
) -> None:
    write(folder, {each: tensor for each, tensor in whole.items() if each != f"{LAYER}.{name}"})
    assert f"tensor {LAYER}.{name} of shape {PARTS[name]} is missing from the checkpoint" in refused(folder, target)


@pytest.mark.parametrize(
    "name", [f"{LAYER}.self_attn.sinks", f"{LAYER}.mlp.up_proj.weight", "model.layers.4.enorm.weight"]
)
def test_a_tensor_that_no_such_layer_has_is_refused(
    folder: Path, target: ModelRunner, whole: dict[str, Tensor], name: str
) -> None:
    write(folder, whole | {name: torch.ones(8)})
    assert f"got tensor {name}, expected none but those that 1 draft layers" in refused(folder, target)


def test_a_folder_without_the_layer_that_its_config_names(tmp_path: Path) -> None:
    """As tools leave it that do not know such layers. Without the option it loads."""
    make_checkpoint(tmp_path, "glm4_moe", num_nextn_predict_layers=1)
    sentence = refused(tmp_path)
    assert f"got no tensor {LAYER}.*, expected those of 1 draft layers, which config.json names (num_nextn" in sentence
    assert ModelRunner.load(tmp_path, device="cpu").draft is None
    edit_config(tmp_path, num_nextn_predict_layers=0)
    assert "this model has no draft layers (num_nextn_predict_layers of config.json)" in refused(tmp_path)
    edit_config(tmp_path, num_nextn_predict_layers=2)
    assert "num_nextn_predict_layers of config.json is 2, expected 1: several draft layers of glm4_moe" in refused(
        tmp_path
    )
