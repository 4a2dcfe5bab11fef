"""Weights are views over the mapped file, and damage is refused before anything is computed."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import Part, SafetensorsFile, open_checkpoint
from model.linear import Linear
from model.runner import ModelRunner
from protocol.errors import CheckpointError, ConfigError
from testkit.checkpoints import greedy_reference, make_checkpoint
from tests.model.driving import Lanes
from tests.model.speculating import edit_config

CPU = torch.device("cpu")


def mapped_files(address: int) -> str:
    """The line of this process's memory map that holds `address`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            return line
    return ""


def test_weights_are_views_over_the_file(tmp_path: Path) -> None:
    weights = {"a": torch.randn(3, 5), "b": torch.randn(4).bfloat16(), "c": torch.randn(2, 0)}
    save_file(weights, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensors == {"a": ("F32", (3, 5)), "b": ("BF16", (4,)), "c": ("F32", (2, 0))}
    for name, weight in weights.items():
        taken = checkpoint.take(name, tuple(weight.shape), weight.dtype, CPU)
        assert torch.equal(taken, weight)
        if weight.numel():
            assert "model.safetensors" in mapped_files(taken.data_ptr())
    converted = checkpoint.take("a", (3, 5), torch.bfloat16, CPU)
    assert torch.equal(converted, weights["a"].bfloat16()) and not mapped_files(converted.data_ptr()).endswith(
        "tensors"
    )


def test_tensors_of_the_same_bytes_are_equal(tmp_path: Path) -> None:
    """With their dtype and shape. Those of fp8 are not, because their scales may differ."""
    a = torch.arange(6.0).view(2, 3)
    last, eight = a.clone(), a.to(torch.float8_e4m3fn)
    last[1, 2] = 7
    others = {"last": last, "shape": a.view(3, 2).clone(), "dtype": a.view(torch.int32).clone(), "narrow": a.bfloat16()}
    save_file({"a": a, "b": a.clone(), "e": eight, "f": eight.clone()} | others, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.are_equal("a", "b") and checkpoint.taken == {}
    pairs = [*(("a", name) for name in others), ("e", "f"), ("a", "none"), ("none", "a"), ("none", "none")]
    assert [pair for pair in pairs if checkpoint.are_equal(*pair)] == []


@pytest.mark.parametrize("part, own", [(Part(0, 2, 2), (slice(2, 4),)), (Part(1, 3, 3), (slice(None), slice(3, 6)))])
def test_a_part_of_a_tensor_is_a_view_over_its_bytes_in_the_file(
    tmp_path: Path, part: Part, own: tuple[slice, ...]
) -> None:
    weight = torch.randn(4, 6)
    weight_of_others = weight.clone()
    weight_of_others[own] = 0
    weight[weight_of_others != 0] = float("nan")  # the check of values reads the part only
    save_file({"a": weight}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path, check_values=True)
    taken = checkpoint.take("a", (4, 6), torch.float32, CPU, part)
    assert torch.equal(taken, weight[own])
    assert "model.safetensors" in mapped_files(taken.data_ptr())
    halved = checkpoint.take("a", (4, 6), torch.bfloat16, CPU, part)
    assert halved.is_contiguous() and halved.untyped_storage().nbytes() == taken.numel() * 2
    with pytest.raises(CheckpointError, match="a: 12 of 24 values are NaN or infinite"):
        checkpoint.take("a", (4, 6), torch.float32, CPU)
    with pytest.raises(CheckpointError, match="a: got shape"):
        checkpoint.take("a", (2, 6), torch.float32, CPU, part)


def test_a_loaded_model_shares_its_weights_with_the_page_cache(tmp_path: Path) -> None:
    runner = ModelRunner.load(make_checkpoint(tmp_path, "qwen2"), device="cpu")
    size = (tmp_path / "model.safetensors").stat().st_size
    assert 0.9 * size < runner.mapped_weight_bytes < size
    query = runner.decoder.layers[1].mixer.qkv.linears[0]
    assert isinstance(query, Linear)
    for weight in (runner.decoder.embedding_VE, query.weight_OI):
        assert "model.safetensors" in mapped_files(weight.data_ptr())
    assert ModelRunner.load(tmp_path, device="cpu", dtype="bfloat16").mapped_weight_bytes == 0


def test_unaligned_tensors_are_read(tmp_path: Path) -> None:
    values = torch.arange(3, dtype=torch.float32)
    header = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode()
    header += b" " * ((5 - len(header)) % 4)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values.numpy().tobytes())
    found = SafetensorsFile(tmp_path / "model.safetensors").tensor("a")
    assert torch.equal(found, values) and found.data_ptr() % found.itemsize == 0


def test_other_formats_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"found pytorch_model\.bin, but only safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"intermediate_size": 81}, r"gate_proj\.weight: got shape \[80, 48\], config\.json implies \[81, 48\]"),
        ({"attention_bias": True}, r"q_proj\.bias of shape \[48\] is missing"),
    ],
)
def test_weights_must_fit_the_config(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    edit_config(make_checkpoint(tmp_path, "llama"), **fields)
    with pytest.raises(CheckpointError, match=sentence):
        ModelRunner.load(tmp_path, device="cpu")


@pytest.mark.parametrize("names", [("lm_head.weight",), ("lm_head.weight", "model.embed_tokens.weight")])
def test_tied_embeddings_under_another_name_or_two(tmp_path: Path, names: tuple[str, ...]) -> None:
    make_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    path = tmp_path / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    embedding = weights.pop("model.embed_tokens.weight")
    weights |= {name: embedding * (1 + index) for index, name in enumerate(names)}
    save_file(weights, path, metadata={"format": "pt"})
    expected = greedy_reference(tmp_path, [[1, 2, 3]], 8)[0]
    assert Lanes(ModelRunner.load(tmp_path, device="cpu"), 16).generate([1, 2, 3], 8) == expected


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"device": "tpu"}, "device: got 'tpu'"),
        ({"dtype": "int8", "device": "cpu"}, "dtype: got 'int8'"),
        ({"device": "cpu", "attention": "triton"}, "--attention-backend: got 'triton', but it needs a CUDA device"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    make_checkpoint(tmp_path, "llama", num_hidden_layers=1)
    with pytest.raises(ConfigError, match=sentence):
        ModelRunner.load(tmp_path, **options)  # type: ignore[arg-type]


def test_auto_dtype_without_a_word_in_the_config_is_that_of_the_weights(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", dtype="float16", num_hidden_layers=1)
    edit_config(tmp_path, dtype=...)
    assert ModelRunner.load(tmp_path, device="cpu").dtype == "float16"
