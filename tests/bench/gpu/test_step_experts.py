"""The step `experts`: the least time, and experts that are wrong, depend on the batch, or make the host wait."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.gpu import step_experts
from bench.gpu.shape import random_runner
from bench.gpu.step_experts import SHAPES, Mixture, measure_experts, others_alone
from bench.gpu.timing import Limits
from bench.records import Goal, Note
from model.experts import Experts
from model.passes import Passes
from runtime.model_parts import ExpertsConfig
from tests.bench.gpu.sheets import faults_in, rows_in, sheet_in


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_experts, "measured_limits", lambda _: Limits(1e9, 1e12))


class Wrong(Experts):
    """Gives less than what its experts give."""

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        return super().__call__(x_NE, passes) * 0.98


class Beside(Experts):
    """Gives a little more in a batch."""

    def __call__(self, x_NE: Tensor, passes: Passes) -> Tensor:
        return super().__call__(x_NE, passes) * (1 + 1e-6 * (x_NE.shape[0] > 1))


def grouped_as(kind: type[Experts], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Mixture]:
    """Mixtures whose grouped experts are of this kind, also in the step."""
    of = Mixture.of

    def made(device: str, dtype: str) -> Mixture:
        own = of(device, dtype)
        grouped = kind(own.grouped.router, own.grouped.experts, own.grouped.shared)
        return Mixture(own.config, own.hidden, grouped, own.passes, own.dtype)

    monkeypatch.setattr(Mixture, "of", made)
    return made


def test_the_floor_is_what_the_slower_resource_needs() -> None:
    own = Mixture.of("cpu", "bfloat16")
    assert isinstance(own.config, ExpertsConfig) and own.expert_weights == 3 * 64 * 48
    assert own.floor_s(1, 2, Limits(1e9, 1e30)) == pytest.approx(2 * 9216 * 2 / 1e9)
    assert own.floor_s(5, 8, Limits(1e30, 1e12)) == pytest.approx(2 * 5 * 2 * 9216 / 1e12)
    assert own.floor_s(5, 8, Limits(1e9, 1e12)) == own.floor_s(5, 8, Limits(1e9, 1e30))
    assert SHAPES["cuda"]["num_experts"] == 128 and own.hit(own.tokens(100)) == 8


def test_the_step_runs_and_says_what_stands_in(tmp_path: Path) -> None:
    sheet = sheet_in(tmp_path, "experts")
    measure_experts(sheet, "cpu")
    assert faults_in(sheet) == []
    records = sheet.folder.records()
    [note] = [record.text for record in records if isinstance(record, Note)]
    assert note.startswith(
        "torch's operations as a stand-in for the kernels, a stand-in for graphs, 8 experts of 48, 2"
    )
    rows = [row.cells for row in rows_in(sheet)]
    assert [cells["rows"] for cells in rows] == [1, 5] and all(cells["other bits, float32"] is None for cells in rows)
    words = [record.words for record in records if isinstance(record, Goal)]
    assert words == [
        "experts, 1 rows: torch / grouped",
        "experts, 5 rows: torch / grouped",
        "experts, 5 rows: floor / grouped",
    ]


def test_experts_that_are_off_fail_the_step_in_each_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grouped_as(Wrong, monkeypatch)
    sheet = sheet_in(tmp_path, "experts")
    measure_experts(sheet, "cpu")
    wrong = [f"experts, {rows} rows, {dtype}: off by 0.02" for rows in (1, 5) for dtype in ("float32", "bfloat16")]
    faults = faults_in(sheet)
    assert len(faults) == 4 and all(fault.startswith(start) for fault, start in zip(faults, wrong, strict=True))


def test_tokens_that_have_other_bits_beside_others_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    own = grouped_as(Beside, monkeypatch)("cpu", "float32")
    x_TE = own.tokens(5)
    assert torch.equal(own.plain(x_TE[:1], own.passes), own.plain(x_TE[:1], own.passes)), "the same each time"
    assert others_alone(own, x_TE) == 5 and others_alone(own, x_TE[:1]) == 0


def test_a_host_that_waits_for_the_device_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_experts, "why_it_waits", lambda *_: "called a synchronizing CUDA operation")
    sheet = sheet_in(tmp_path, "experts")
    measure_experts(sheet, "cpu")
    assert faults_in(sheet) == [
        f"experts, {rows} rows: the host waits for the device: called a synchronizing CUDA operation" for rows in (1, 5)
    ]


def test_a_gpu_without_triton_has_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "bench.gpu.step_experts.random_runner",
        lambda _, device, *rest, **named: random_runner(SHAPES["cpu"], "cpu", *rest, **named),
    )
    with pytest.raises(RuntimeError, match="Triton is not installed"):
        Mixture.of("cuda", "float32")
