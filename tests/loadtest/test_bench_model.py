"""The models of the comparisons are what Hugging Face folders should be."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from loadtest import bench_model as module
from loadtest.bench_model import CONFIG, EXPERTS_CONFIG, bench_model, experts_model, write_model
from model.runner import ModelRunner

SMALL: dict[str, Any] = {**CONFIG, "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


def test_every_tensor_is_there_in_bfloat16(tmp_path: Path) -> None:
    write_model(tmp_path / "m", SMALL)
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    assert len(tensors) == 3 + 2 * 11
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    assert tensors["model.layers.1.self_attn.k_proj.weight"].shape == (4 * 64, 32)
    assert tensors["model.norm.weight"].eq(1).all()
    spread = tensors["lm_head.weight"].float().std().item()
    assert spread == pytest.approx(0.02, rel=0.1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 64
    assert tokenizer.encode(tokenizer.decode([5, 6])).ids == [5, 6]


def test_it_has_29_million_parameters() -> None:
    sizes = [torch.Size(shape).numel() for _, shape in module._shapes(CONFIG)]
    assert round(sum(sizes) / 1e6) == 29


def test_the_mixture_of_experts_is_named_after_its_parameters() -> None:
    sizes = [torch.Size(shape).numel() for _, shape in module._shapes(EXPERTS_CONFIG)]
    assert f"{sum(sizes) / 1e6:.0f}" in module.EXPERTS_NAME


def test_a_worker_loads_the_mixture_of_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**EXPERTS_CONFIG, "vocab_size": 64, "hidden_size": 32, "num_experts": 9, "moe_intermediate_size": 16}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "EXPERTS_CONFIG", small)
    folder = experts_model()
    runner = ModelRunner.load(folder, device="cpu", dtype="float32")
    assert [layer.feed.num_scores for layer in runner.config.layers] == [9, 9]


def test_it_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "CONFIG", SMALL)
    folder = bench_model()
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert bench_model() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
