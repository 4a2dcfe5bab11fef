"""The benchmark of CUDA IPC where there is no device, and its arithmetic."""

import json

import pytest
import torch

from bench.transfer import cuda_ipc
from bench.transfer.cuda_ipc import LAYOUT, NOT_MEASURED, Prompt, main, measure, summary
from protocol.kv_layout import KvLayout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_nothing_is_made_up_without_a_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["cuda_ipc"])
    assert main() == 0 and measure() is None
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == NOT_MEASURED and json.loads(last) == {"cuda_ipc": None}


def test_figures_are_of_medians() -> None:
    seconds = {"in order": [1.0, 2.0, 9.0], "scattered": [4.0] * 3, "limit": [1.0] * 3, "check": [0.5] * 3}
    figures = summary(seconds, 4 * 10**9)
    assert (figures["gb_s"], figures["scattered_gb_s"], figures["limit_gb_s"]) == (2.0, 1.0, 4.0)
    assert (figures["share"], figures["ms_32k"], figures["check_ms_32k"]) == (0.5, 2000.0, 500.0)


@pytest.mark.parametrize("scattered", [False, True])
def test_a_plan_moves_the_whole_prompt(scattered: bool) -> None:
    copy = Prompt(LAYOUT, 4096, "cpu").plan(scattered)
    assert copy.sources.num_bytes == copy.targets.num_bytes == 4096 * 2 * LAYOUT.layer(0).token_bytes
    assert (len(copy.targets) == 1) != scattered


@pytest.mark.slow
def test_shared_memory_stands_in_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes; `measure` itself compares the sums of what was sent with those of what lies there."""
    monkeypatch.setattr(cuda_ipc, "WARM_UP", 0)
    layout = KvLayout.uniform(num_layers=2, num_kv_heads=2, head_dim=8, page_size=4, dtype="bfloat16")
    figures = measure(repeat=1, num_tokens=41, layout=layout, device="cpu")
    assert figures is not None and figures["bytes"] == 41 * 2 * 2 * 8 * 2 * 2
    assert min(figures["gb_s"], figures["scattered_gb_s"], figures["limit_gb_s"]) > 0


@pytest.mark.gpu
def test_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_ipc, "WARM_UP", 1)
    figures = measure(repeat=2, num_tokens=1024)
    assert figures is not None and figures["gb_s"] > 0 and figures["limit_gb_s"] > 0
