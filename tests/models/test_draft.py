"""The committed draft: small, in the published layout, good enough, and made by the recipe beside it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from model.paged_kv import PagedKv
from model.runner import DraftSource, ModelRunner
from models.train.draft import KINDS, MTP_PREFIX, DraftRecipe, Kind, draft_config_json, features_of, load_draft
from models.train.draft_text import HELD_OUT_SEED, Text, answers, batches, mixed_draw, prompts
from models.train.measure_draft import WAYS, measure
from models.train.train import STORY_FOLDER
from testkit.inputs import chunks

REPOSITORY = STORY_FOLDER.parents[1]
REFERENCE = json.loads((STORY_FOLDER.parent / "train" / "check_draft.json").read_text())
TRAINED = tuple(KINDS)
EAGLE3_ALONE = {
    *("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight", "norm.weight", "lm_head.weight", "d2t", "t2d")
}


MTP_ALONE = ("token_layernorm", "hidden_layernorm", "input_proj", "input_layernorm", "final_layernorm")


def draft_weights(kind: Kind) -> dict[str, torch.Tensor]:
    """The tensors of a draft, without its target's."""
    with safe_open(kind.folder / "model.safetensors", framework="pt") as weights:
        names = [name for name in weights.keys() if not kind.is_mtp or name.startswith(MTP_PREFIX)]  # noqa: SIM118
        return {name: weights.get_tensor(name) for name in names}


@pytest.fixture(params=TRAINED)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_folder_is_at_most_two_megabytes(kind: Kind) -> None:
    if kind.is_mtp:  # its layers are among the target's weights
        assert sum(each.nbytes for each in draft_weights(kind).values()) <= 2_000_000
        return
    files = {path.name: path.stat().st_size for path in kind.folder.iterdir()}
    assert set(files) == {"config.json", "model.safetensors"}
    assert sum(files.values()) <= 2_000_000


def test_config_is_the_recipes_and_the_targets(kind: Kind) -> None:
    config = json.loads((kind.folder / "config.json").read_text())
    assert config == draft_config_json(DraftRecipe(kind=kind))
    target = json.loads((STORY_FOLDER / "config.json").read_text())
    assert [config[name] for name in ("vocab_size", "hidden_size")] == [target["vocab_size"], target["hidden_size"]]


def test_tensors_have_the_published_names_and_are_bfloat16(kind: Kind) -> None:
    layers, own = (
        ["midlayer." if kind.num_known else "layers.0."],
        {"fc.weight", *(EAGLE3_ALONE if kind.num_known else ())},
    )
    if kind.is_mtp:
        layers = [f"{MTP_PREFIX}{index}." for index in range(kind.num_layers)]
        own = {f"{layer}{name}.weight" for layer in layers for name in MTP_ALONE}
    for layer in layers:
        own |= {f"{layer}self_attn.{name}.weight" for name in "q_proj k_proj v_proj o_proj q_norm k_norm".split()}
        own |= {f"{layer}mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")}
        own |= {f"{layer}post_attention_layernorm.weight"}
    found = draft_weights(kind)
    assert found.keys() == own
    tensors = [tensor for name, tensor in found.items() if name not in ("d2t", "t2d")]
    assert all(tensor.dtype == torch.bfloat16 and bool(tensor.isfinite().all()) for tensor in tensors)


def test_the_products_loader_proposes_what_the_scripts_net_does(kind: Kind) -> None:
    """Both in float32, on one prompt: a layout that either misreads would show here."""
    algorithm = next(name for name, each in KINDS.items() if each is kind)
    source = DraftSource(algorithm, kind.folder, kind.num_layers)
    runner = ModelRunner.load(STORY_FOLDER, device="cpu", dtype="float32", draft=source)
    target = AutoModelForCausalLM.from_pretrained(STORY_FOLDER, dtype=torch.float32)
    embedding_VE = target.get_input_embeddings().weight.detach()
    ids_T = torch.tensor(range(100, 140))
    features_1TF, _ = features_of(target, ids_T[None], kind)
    net = load_draft(kind, kind.folder)
    wanted = list(net.unroll(F.embedding(ids_T[None, 1:], embedding_VE), features_1TF[:, :-1], kind.num_layers))

    assert runner.draft is not None
    kv = PagedKv(runner.kv_layout(16), 5)
    tables_BP = torch.tensor([[1, 2, 3]])
    _, features_TF = runner.forward_with_features(chunks(ids_T, (len(ids_T),), tables_BP, 16), kv)
    inp = chunks(ids_T[1:], (len(ids_T) - 1,), tables_BP, 16)
    inp = replace(inp, logit_indices_L=torch.arange(len(ids_T) - 1))
    hidden_TE = runner.draft.fuse(features_TF[:-1])
    for index, wanted_1TE in enumerate(wanted):
        shifted = replace(inp, input_ids_T=inp.input_ids_T.roll(-index))
        hidden_TE = runner.draft.run_layer(index, shifted, hidden_TE, kv)
        found_TE, wanted_TE = hidden_TE[: len(hidden_TE) - index], wanted_1TE[0, index:]
        torch.testing.assert_close(found_TE, wanted_TE, rtol=1e-3, atol=1e-3)
        logits_TV, wanted_TV = runner.draft.logits(found_TE), net.logits(wanted_TE, embedding_VE)
        torch.testing.assert_close(logits_TV, wanted_TV, rtol=1e-3, atol=1e-3)


def test_batches_hold_every_text_once_and_pad_with_what_is_no_answer() -> None:
    texts = [Text(tuple(range(3, 3 + length)), num_prompt=2) for length in (9, 3, 5, 4)]
    found = batches(texts, tokens_per_batch=10)
    rows = [row.tolist() for batch in found for row in batch.ids_RS]
    assert sorted(len([token for token in row if token]) for row in rows) == [3, 4, 5, 9]
    assert all(batch.ids_RS.numel() <= 10 for batch in found)
    for batch in found:
        assert torch.equal(batch.is_answer_RS, batch.ids_RS > 4)  # ids 3 and 4 are the prompts


@pytest.mark.slow
def test_greedy_answers_are_those_of_transformers() -> None:
    runner = ModelRunner.load(STORY_FOLDER, device="cpu", dtype="float32")
    asked = prompts(HELD_OUT_SEED, 8)
    texts = answers(runner, asked, mixed_draw, max_tokens=24)
    model = AutoModelForCausalLM.from_pretrained(STORY_FOLDER, dtype=torch.float32)
    for text, prompt in list(zip(texts, asked, strict=True))[::3]:  # every third is greedy
        assert text.ids[: text.num_prompt] == tuple(prompt)
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, temperature=None, top_p=None, top_k=None
        )
        assert text.ids == tuple(out[0].tolist())
    assert any(len(text.ids) > text.num_prompt + 8 for text in texts)


@pytest.mark.full
def test_held_out_texts_accept_three_tokens_a_launch(kind: Kind) -> None:
    greedy, _, same_noise = found = tuple(measure(kind, 60, WAYS).values())
    if kind.is_mtp:  # two layers propose two tokens
        assert len(greedy.lengths) == 2 and greedy.lengths[1] >= 2.2 and same_noise.lengths[1] >= 2.0
    else:
        assert greedy.lengths[3] >= 3.0 and same_noise.lengths[3] >= 3.0
    for figures in found:
        assert figures.lengths == sorted(figures.lengths) and figures.shares == sorted(figures.shares, reverse=True)


@pytest.mark.full
@pytest.mark.parametrize("name", TRAINED)
def test_training_repeats_itself(name: str) -> None:
    reference = REFERENCE[name]
    first, second = run_check(name), run_check(name)
    assert first == second
    for losses, wanted in zip(first["losses"], reference["losses"], strict=True):
        assert losses == pytest.approx(wanted, abs=0.05)
    if first["machine"] == reference["machine"]:  # the last bits of a sum depend on the processor
        assert first["weights_sha256"] == reference["weights_sha256"]


def run_check(name: str) -> dict[str, Any]:
    """The first steps, in a process of their own."""
    command = [sys.executable, "-m", "models.train.draft", name, "--check"]
    variables = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    output = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, check=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result
