"""Which attention a device gets, and what is said of one that cannot run there."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from model import attention
from model.attention import choose_attention
from model.attention_cpu import CpuAttention
from model.attention_varlen import VarlenAttention
from model.runner import ModelRunner
from protocol.errors import ConfigError
from protocol.kv_layout import LayerLayout
from testkit.checkpoints import make_checkpoint
from tests.model.attention_cases import paged_kernel

LAYOUT = LayerLayout(2, 16, 4, "float32")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def choose(name: str, device: torch.device) -> Any:
    return choose_attention(name, device, LAYOUT, 4, torch.float32, 100)


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_on_a_cpu(name: str) -> None:
    assert isinstance(choose(name, CPU), CpuAttention)


def test_auto_on_a_gpu_is_the_one_that_does_not_depend_on_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(attention, "_triton", lambda device, layout, heads, context: made.append((heads, context)))
    choose("auto", CUDA)
    choose("triton", CUDA)
    assert made == [(4, 100)] * 2


@pytest.mark.parametrize(
    "name, device, why",
    [
        ("triton", CPU, "but it needs a CUDA device, and the model is on cpu"),
        ("varlen", CPU, "but it needs a CUDA device, and the model is on cpu"),
        ("cpu", CUDA, "but it computes on a CPU, and the model is on cuda:0"),
        ("flash", CUDA, "expected auto, triton, varlen or cpu"),
    ],
)
def test_what_cannot_run_there_is_refused_by_name(name: str, device: torch.device, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(name, device)
    assert caught.value.message == f"--attention-backend: got '{name}', {why}"
    assert caught.value.param == "attention-backend"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model.attention_triton", None)
    with pytest.raises(ConfigError, match="got 'triton', but the package triton is not installed"):
        choose("triton", CUDA)


def test_an_old_torch_is_named_and_so_is_a_kernel_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "find_kernel", lambda: None)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    with pytest.raises(ConfigError, match=r"'varlen', but it needs torch 2\.12 or newer, and this is torch 2\.11\.0"):
        choose("varlen", CUDA)
    monkeypatch.setattr(attention, "find_kernel", lambda: paged_kernel)
    monkeypatch.setattr(attention, "trial", lambda *_: "torch's varlen attention is off by 1 here")
    with pytest.raises(ConfigError, match="'varlen', but torch's varlen attention is off by 1 here"):
        choose("varlen", CUDA)
    monkeypatch.setattr(attention, "trial", lambda *_: None)
    assert isinstance(choose("varlen", CUDA), VarlenAttention)


def test_a_backend_without_sinks_is_refused_for_a_model_that_has_them(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "gpt_oss")
    with pytest.raises(ConfigError, match="--attention-backend: got 'varlen', but it has no sinks"):
        ModelRunner.load(folder, device="cpu", attention="varlen")
