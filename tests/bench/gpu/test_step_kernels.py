"""The step `passes`: the bytes that must move, inputs that do not overlap, and passes that are wrong are faults."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.gpu import step_kernels
from bench.gpu.kernel_sides import Setup, inputs_for
from bench.gpu.shape import QWEN3_8B, TINY, config_of
from bench.gpu.step_kernels import (
    BOUNDS,
    SIZES,
    MakePass,
    adding,
    difference,
    gate_bytes,
    gating,
    measure_passes,
    norm_bytes,
    norming,
    place_bytes,
    placing,
    words_of_kernels,
)
from bench.gpu.timing import Limits
from bench.records import Goal, Note
from model.passes import TorchPasses
from tests.bench.gpu.sheets import faults_in, rows_in, sheet_in

CONFIG = config_of(TINY)
AT = Setup(CONFIG, torch.device("cpu"), SIZES["cpu"], Limits(1e9, 1e9))
PLAIN = TorchPasses(CONFIG.num_heads, CONFIG.head_dim, CONFIG.rms_norm_eps)


def test_bytes_are_those_of_what_is_read_and_written_once() -> None:
    # 4 query heads, 2 of K and 2 of V, of 16 numbers; 6 have norms; 128 is the intermediate size.
    assert place_bytes(CONFIG, 3, 2) == 3 * (8 * 16 * 2 + 8 * 16 * 2 + 2 * 16 * 4 + 2 * 8) + 6 * 16 * 2
    assert gate_bytes(CONFIG, 3, 2) == 3 * (2 * 128 + 128) * 2
    assert norm_bytes(CONFIG, 3, 2, 4) == (3 * 4 * 64 + 64) * 2
    config = config_of(QWEN3_8B)
    assert (place_bytes(config, 1, 2), gate_bytes(config, 1, 2)) == (2 * 12_288 + 1024 + 16 + 10_240, 73_728)


@given(st.integers(1, 40), st.sampled_from(sorted(BOUNDS)))
def test_the_inputs_of_a_graph_write_different_slots_and_no_padding_page(rows: int, dtype: str) -> None:
    own = placing(AT, rows, dtype)
    assert own.kv is not None
    pages, count = own.kv.layer(0).fill_(torch.nan), inputs_for(own.num_bytes, AT.size)
    num_values = rows * 2 * CONFIG.num_kv_heads * CONFIG.head_dim
    for index in range(count + 2):
        own.run(PLAIN, index)
        assert (
            int((~pages.isnan()).sum()) == min(index + 1, count) * num_values
        )  # behind the last input comes the first
    assert count > 1 and pages[0].isnan().all()


# ---- wrong passes ----


class Scattered(TorchPasses):
    """Writes one slot more: that before the first of the pages' rows."""

    def place(self, qkv: tuple[Tensor, ...], *rest: Any) -> Tensor:
        q_THD = super().place(qkv, *rest)
        rest[2].layer(0)[0, 0, 0] = 1.0
        return q_THD


class Rounded(TorchPasses):
    """Places V in a shorter number."""

    def place(self, qkv: tuple[Tensor, ...], *rest: Any) -> Tensor:
        q_THD = super().place(qkv, *rest)
        v = rest[2].layer(0)[:, 1]
        v.copy_(v.to(torch.float8_e5m2))
        return q_THD


class Unweighted(TorchPasses):
    """Norms without the weight."""

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        return super().rms_norm(x_TE, torch.ones_like(weight_E))


class Unadded(TorchPasses):
    """Leaves the residual stream as it was, and norms the sum."""

    def added_norm(self, residual_TE: Tensor, y_TE: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        return residual_TE, super().added_norm(residual_TE, y_TE, weight_E)[1]


class Empty(TorchPasses):
    """Gates to numbers that are none."""

    def gated(self, gate_up: tuple[Tensor, ...]) -> Tensor:
        return super().gated(gate_up) * torch.nan


WRONG: list[tuple[type[TorchPasses], MakePass, str]] = [
    (Scattered, placing, "other slots are written"),
    (Rounded, placing, "V is not the same"),
    (Unweighted, norming, ""),
    (Unweighted, adding, ""),
    (Unadded, adding, ""),
    (Empty, gating, ""),
]


@pytest.mark.parametrize("dtype", sorted(BOUNDS))
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("kind, make, reason", WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_wrong_pass_is_told_from_a_right_one(
    kind: type[TorchPasses], make: MakePass, reason: str, rows: int, dtype: str
) -> None:
    own, wrong = make(AT, rows, dtype), kind(PLAIN.num_heads, PLAIN.head_dim, PLAIN.eps)
    assert difference(own.written(PLAIN), own.written(PLAIN)) == (0.0, "")
    error, words = difference(own.written(wrong), own.written(PLAIN))
    assert words == reason and (reason or error > BOUNDS[dtype])


# ---- the step ----


def test_the_step_runs_and_says_what_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_kernels, "measured_limits", lambda _: Limits(1e9, 1e9))
    sheet = sheet_in(tmp_path)
    measure_passes(sheet, "cpu")
    records = sheet.folder.records()
    assert faults_in(sheet) == []
    [note] = [record.text for record in records if isinstance(record, Note)]
    assert note.startswith("torch's operations as a stand-in for the kernels, a stand-in for graphs")
    assert words_of_kernels("cuda") == "Triton's kernels"

    rows = [row.cells for row in rows_in(sheet) if row.table == "A pass"]
    names = ("norm", "added norm", "place", "gate")
    assert [(cells["pass"], cells["rows"]) for cells in rows] == [(name, count) for count in (1, 5) for name in names]
    tables = [row.table for row in rows_in(sheet)]
    assert [tables.count(name) for name in ("Results", "Attention of decodes", "Attention of a prompt")] == [16, 2, 1]
    words = [record.words for record in records if isinstance(record, Goal)]
    assert "place, 5 rows: share of a device copy" in words and "place, 1 rows: share of a device copy" not in words


def test_a_wrong_pass_fails_the_step_in_each_dtype_and_is_timed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_kernels, "measured_limits", lambda _: Limits(1e9, 1e9))
    monkeypatch.setattr(step_kernels, "passes_of", lambda *_: Empty(PLAIN.num_heads, PLAIN.head_dim, PLAIN.eps))
    sheet = sheet_in(tmp_path)
    measure_passes(sheet, "cpu")
    sheet.end()
    assert faults_in(sheet) == [f"gate, {rows} rows, {dtype}: off by inf" for rows in (1, 5) for dtype in BOUNDS]
    rows = [row.cells for row in rows_in(sheet)]
    assert len([cells for cells in rows if "error" in cells and cells["error"] is None]) == 4
    assert len([cells for cells in rows if "torch / fused" in cells]) == 8
