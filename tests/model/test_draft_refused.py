"""A draft of another target, or one that is misread, is refused in one sentence that names both values."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.runner import DraftSource, ModelRunner
from protocol.errors import CheckpointError
from testkit.checkpoints import OF_EXPERTS, Architecture, make_checkpoint
from tests.drafts import make_draft

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("target"), "llama")


def refused(folder: Path, target: Path, algorithm: str) -> str:
    """The sentence with which the draft in `folder` is refused."""
    with pytest.raises(CheckpointError) as caught:
        ModelRunner.load(target, device="cpu", draft=DraftSource(algorithm, folder), check_weights=True)
    sentence = str(caught.value)
    assert "\n" not in sentence and len(sentence) < 400
    return sentence


@pytest.mark.parametrize(
    ("algorithm", "fields", "sentence"),
    [
        ("eagle", {"hidden_size": 64}, "hidden_size of the draft is 64, but its target has 48"),
        ("eagle", {"vocab_size": 300}, "vocab_size of the draft is 300, but its target has 307"),
        ("eagle3", {"target_hidden_size": 96}, "target_hidden_size of the draft is 96, but its target has 48"),
        ("eagle3", {"draft_vocab_size": 308}, "draft_vocab_size: got 308, expected 1 to 307"),
        (
            "eagle",
            {"draft_vocab_size": 100},
            "draft_vocab_size: got 100, expected 307 to 307, the target's vocab_size; eagle3",
        ),
        ("eagle", {"num_hidden_layers": 2}, "num_hidden_layers: got 2, expected 1"),
        ("eagle", {"num_key_value_heads": 3}, "num_key_value_heads: got 3, expected a divisor of num_attention_heads"),
        (
            "eagle",
            {"architectures": ["MambaForCausalLMEagle"]},
            "architectures: got ['MambaForCausalLMEagle'], expected",
        ),
        (
            "eagle3",
            {"architectures": ["Eagle3Speculator"]},
            "architectures: got ['Eagle3Speculator'], expected one of Lla",
        ),
        ("eagle3", {"norm_before_residual": True}, "norm_before_residual: got True, expected false"),
        ("eagle3", {"logit_scale": 0.5}, "logit_scale: got 0.5, expected 1"),
        (
            "eagle",
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4},
            "architectures: got ['MixtralForCausalLM'], expected one of Lla",
        ),
        ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state: got False, expected true"),
        ("eagle3", {LAYER_IDS: [0, 1, 3]}, "got [0, 1, 3], expected 3 ascending integers from 0 to 2"),
        ("eagle3", {LAYER_IDS: [0, 2, 1]}, "got [0, 2, 1], expected 3 ascending"),
        ("eagle3", {LAYER_IDS: [0, 2]}, "got [0, 2], expected 3 ascending"),
        ("eagle3", {LAYER_IDS: "all"}, "got 'all', expected 3 ascending"),
        ("eagle3", {LAYER_IDS: None}, "expected 3 ascending integers from 0 to 2: layers of the target, which has 3"),
        ("eagle3", {LAYER_IDS: None, "eagle_config": {LAYER_IDS: [0, 1, 2]}}, "3 ascending integers from -1 to 1"),
    ],
)
def test_bad_configs(tmp_path: Path, target: Path, algorithm: str, fields: dict[str, Any], sentence: str) -> None:
    make_draft(tmp_path, target, algorithm)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    found = refused(tmp_path, target, algorithm)
    assert sentence in found and found.startswith(str(tmp_path)), "its target has a config.json, too"


def without(*names: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in names:
            del tensors[name]

    return change


def to(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = make(tensors.get(name, torch.ones(48)))

    return change


def at(index: int, value: int) -> Callable[[Tensor], Tensor]:
    return lambda offsets_N: offsets_N.index_fill(0, torch.tensor([index]), value)


@pytest.mark.parametrize(
    ("algorithm", "change", "sentence"),
    [
        ("eagle", without("fc.weight"), "tensor fc.weight of shape [48, 96] is missing"),
        ("eagle3", without("norm.weight"), "tensor norm.weight of shape [48] is missing"),
        ("eagle3", without("d2t"), "tensor d2t of shape [101] is missing"),
        ("eagle3", without("lm_head.weight"), "tensor lm_head.weight of shape [101, 48] is missing"),
        (
            "eagle3",
            without("midlayer.input_layernorm.weight"),
            "midlayer.input_layernorm.weight of shape [48] is missing",
        ),
        (
            "eagle3",
            to("fc.weight", lambda fc: fc[:, :96]),
            "fc.weight: got shape [48, 96], config.json implies [48, 144]",
        ),
        (
            "eagle",
            to("fc.weight", lambda fc: fc.to(torch.float64)),
            "fc.weight: got dtype F64, supported: F32, BF16, F16",
        ),
        ("eagle", to("fc.weight", lambda fc: fc / 0), "fc.weight: 4608 of 4608 values are NaN or infinite"),
        ("eagle3", to("d2t", lambda d2t: d2t.float()), "d2t: got dtype F32, supported: I64, I32"),
        (
            "eagle3",
            to("d2t", at(100, 207)),
            "draft id 100 has offset 207, so it stands for token 307, expected 0 to 306",
        ),
        ("eagle3", to("d2t", at(2, -3)), "draft id 2 has offset -3, so it stands for token -1, expected 0 to 306"),
        ("eagle3", to("d2t", at(9, 2**63 - 1)), "draft id 9 has offset 9223372036854775807, so it stands for token -"),
        (
            "eagle3",
            to("d2t", lambda d2t: -torch.arange(101)),
            "101 draft ids stand for 1 tokens, expected one for each",
        ),
        (
            "eagle",
            to("embedding_layernorm.weight", Tensor.clone),
            "got tensor embedding_layernorm.weight, expected none",
        ),
        ("eagle", to("layers.0.self_attn.q_norm.weight", Tensor.clone), "got tensor layers.0.self_attn.q_norm.weight"),
    ],
)
def test_bad_tensors(
    tmp_path: Path, target: Path, algorithm: str, change: Callable[[dict[str, Tensor]], None], sentence: str
) -> None:
    path = make_draft(tmp_path, target, algorithm) / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    assert sentence in refused(tmp_path, target, algorithm)


@pytest.mark.parametrize(("asked", "found"), [("eagle", "eagle3"), ("eagle3", "eagle")])
def test_the_other_algorithm(tmp_path: Path, target: Path, asked: str, found: str) -> None:
    fields: dict[str, Any] = {LAYER_IDS: [0, 1, 2], "draft_vocab_size": 307 if asked == "eagle" else None}
    make_draft(tmp_path, target, found, **fields)
    says = f"--speculative-algorithm: got {asked}, but the tensors are those of {found}"
    assert says in refused(tmp_path, target, asked)


@pytest.mark.parametrize(
    ("asked", "found", "name"),
    [("eagle", "eagle3", "LlamaForCausalLMEagle3"), ("eagle3", "eagle", "LlamaForCausalLMEagle")],
)
def test_a_folder_that_names_the_other_algorithm(
    tmp_path: Path, target: Path, asked: str, found: str, name: str
) -> None:
    make_draft(tmp_path, target, found, architectures=[name])
    sentence = refused(tmp_path, target, asked)
    assert sentence.startswith(f"{tmp_path}/config.json: architectures: got ['{name}'], expected one of {asked};")
    assert sentence.endswith(f"; this one takes --speculative-algorithm {found}")


def test_a_model_without_draft_layers(target: Path) -> None:
    sentence = refused(target, target, "mtp")
    assert sentence.startswith(f"{target}: this model has no draft layers (num_nextn_predict_layers of config.json)")
    assert "eagle and eagle3 take a draft from a folder of its own" in sentence


@pytest.mark.parametrize("arch", [arch for arch in OF_EXPERTS if arch != "glm4_moe"])
def test_draft_layers_of_experts_that_are_not_read(tmp_path: Path, arch: Architecture) -> None:
    make_checkpoint(tmp_path, arch, num_nextn_predict_layers=1)
    sentence = refused(tmp_path, tmp_path, "mtp")
    assert sentence.startswith(f"{tmp_path}: --speculative-algorithm: got mtp, but draft layers of {arch} are not supp")
    assert "eagle and eagle3 take a draft from a folder of its own" in sentence


def test_published_bin_files_are_refused_with_their_conversion(tmp_path: Path, target: Path) -> None:
    make_draft(tmp_path, target, "eagle")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    sentence = refused(tmp_path, target, "eagle")
    assert "found pytorch_model.bin, but only safetensors weights are read; convert it with" in sentence


def test_the_conversion_in_the_docs_takes_tensors_that_share_memory(tmp_path: Path, target: Path) -> None:
    make_draft(tmp_path, target, "eagle3")
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    tensors["fc.weight"] = tensors["fc.weight"].T.contiguous().T
    tensors["norm.weight"] = tensors["midlayer.hidden_norm.weight"]
    torch.save(tensors, tmp_path / "pytorch_model.bin")

    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    command = page.partition('python -c "import torch, safetensors')[2].partition('"')[0]
    subprocess.run([sys.executable, "-c", f"import torch, safetensors{command}"], cwd=tmp_path, check=True)
    assert ModelRunner.load(target, device="cpu", draft=DraftSource("eagle3", tmp_path)).draft is not None
