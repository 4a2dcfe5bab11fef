"""The benchmark of CUDA IPC where there is no device, and its arithmetic."""

from itertools import product

import pytest
import torch

from bench.transfer import cuda_ipc
from bench.transfer.cuda_ipc import LAYOUT, ORDERS, Found, Prompt, measure
from bench.transfer.launches import TOGETHER, WAYS, Times
from protocol.kv_layout import KvLayout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_nothing_is_made_up_without_a_device() -> None:
    assert measure() is None


def test_figures_are_of_medians() -> None:
    rounds_of = Found(limit_s=[1.0] * 3)
    walls = {"in order": [1.0, 2.0, 9.0], "scattered": [4.0] * 3}
    for turn, (order, way) in product(range(3), product(ORDERS, WAYS)):
        wall = walls[order][turn] * (1 if way == TOGETHER else 10)
        rounds_of.add(order, way, Times(wall, 0.25 * turn, 0.5), Times(0.5, 0.125, 0.25))
    figures = rounds_of.summary(4 * 10**9)
    assert (figures["gb_s"], figures["scattered_gb_s"], figures["limit_gb_s"]) == (2.0, 1.0, 4.0)
    assert (figures["share"], figures["ms_32k"], figures["check_ms_32k"]) == (0.5, 2000.0, 500.0)
    assert [(row["what"], row["order"], row["way"]) for row in figures["ways"]] == [
        (what, order, way) for what, (order, way) in product(("move", "sum"), product(ORDERS, WAYS))
    ]
    assert figures["ways"][0] == {
        "what": "move", "order": "in order", "way": TOGETHER, "wall": 2.0, "host": 0.25, "device": 0.5
    }  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_a_plan_moves_the_whole_prompt(order: str) -> None:
    copy = Prompt(LAYOUT, 4096, "cpu").plan(order)
    assert copy.sources.num_bytes == copy.targets.num_bytes == 4096 * 2 * LAYOUT.layer(0).token_bytes
    assert (len(copy.targets) == 1) == (order == "in order")


@pytest.mark.slow
def test_shared_memory_stands_in_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes; `measure` itself compares the sums of what was sent with those of what lies there."""
    monkeypatch.setattr(cuda_ipc, "WARM_UP", 0)
    layout = KvLayout.uniform(num_layers=2, num_kv_heads=2, head_dim=8, page_size=4, dtype="bfloat16")
    figures = measure(repeat=1, num_tokens=41, layout=layout, device="cpu", ways=WAYS)
    assert figures is not None and figures["bytes"] == 41 * 2 * 2 * 8 * 2 * 2
    assert min(figures["gb_s"], figures["scattered_gb_s"], figures["limit_gb_s"]) > 0
    assert len(figures["ways"]) == 2 * len(ORDERS) * len(WAYS)
    assert all(min(row["wall"], row["host"], row["device"]) > 0 for row in figures["ways"])


@pytest.mark.gpu
def test_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_ipc, "WARM_UP", 1)
    figures = measure(repeat=2, num_tokens=1024, ways=WAYS)
    assert figures is not None and figures["gb_s"] > 0 and figures["limit_gb_s"] > 0
    assert all(row["wall"] > row["host"] > 0 < row["device"] for row in figures["ways"])
