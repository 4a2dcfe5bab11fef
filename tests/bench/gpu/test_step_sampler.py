"""The step `sampler`: rows draw alike in every batch, and tokens that are not the CPU's are faults."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.gpu import step_sampler
from bench.gpu.step_sampler import CONTEXT, KINDS, SIZES, Drawing, Kind, measure_sampler
from bench.gpu.timing import Limits
from bench.records import Row
from model.sampling_input import Draws
from tests.bench.gpu.sheets import faults_in, rows_in, sheet_in
from tests.model.driving import random_logits

VOCAB = SIZES["cpu"].vocab_size


def tokens_of(kind: Kind, logits: torch.Tensor) -> list[int]:
    tokens: list[int] = Drawing(kind, logits).draw().tolist()
    return tokens


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_row_is_drawn_alike_in_every_batch_and_each_time(kind: Kind) -> None:
    logits = random_logits(7, VOCAB, 5)
    drawing = Drawing(kind, logits)
    drawn = drawing.draw().tolist()
    assert drawing.draw().tolist() == drawn and all(0 <= token < VOCAB for token in drawn)
    for count in (1, 3):
        assert tokens_of(kind, logits[:count]) == drawn[:count]


def test_the_kinds_use_every_part_of_the_sampler() -> None:
    inputs = {kind.name: Drawing(kind, random_logits(2, VOCAB, 1)) for kind in KINDS}
    sampling = {name: made.columns.input(made.seq_lens_B, made.seq_lens) for name, made in inputs.items()}
    assert [name for name, batch in sampling.items() if batch.asking.all_greedy] == ["greedy"]
    assert [name for name, batch in sampling.items() if batch.asking.top_k_N is not None] == [
        "top-k 40", "top-k, top-p, min-p",
    ]  # fmt: skip
    assert [name for name, batch in sampling.items() if batch.asking.top_p_N is not None] == [
        "top-p 0.9", "top-k, top-p, min-p",
    ]  # fmt: skip
    assert [name for name, batch in sampling.items() if batch.asking.min_p_N is not None] == ["top-k, top-p, min-p"]
    assert [name for name, batch in sampling.items() if batch.logprobs is not None] == ["plain, 5 logprobs"]
    assert [name for name, made in inputs.items() if made.allowed is not None] == ["plain, grammar"]
    [penalties] = [batch.rules for batch in sampling.values() if batch.rules is not None]
    assert penalties.reads_context and penalties.width > CONTEXT


def test_every_row_has_a_context_of_its_own() -> None:
    """Of equal logits, a greedy row takes the first token that its context lacks."""
    [penalties] = [kind.params for kind in KINDS if kind.params.rules is not None]
    tokens = tokens_of(Kind("greedy", replace(penalties, temperature=0.0)), torch.ones(16, VOCAB))
    assert len(set(tokens)) > 4


# ---- the step ----


FEW = KINDS[::3]


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Row], list[str]]:
    """Rows and faults."""
    monkeypatch.setattr(step_sampler, "measured_limits", lambda _: Limits(1e9, 1e9))
    monkeypatch.setattr(step_sampler, "KINDS", FEW)
    sheet = sheet_in(tmp_path, "sampler")
    measure_sampler(sheet, "cpu")
    return rows_in(sheet), faults_in(sheet)


def test_the_step_has_a_row_for_every_kind_and_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, faults = measured(tmp_path, monkeypatch)
    assert faults == []
    draws = [row.cells for row in rows if row.table == "A draw"]
    assert [(cells["draw"], cells["batch"]) for cells in draws] == [
        (kind.name, batch) for kind in FEW for batch in SIZES["cpu"].batches
    ]
    for column in ("as on the CPU", "as torch"):
        assert {cells[column] for cells in draws} == {"3 of 3", "1 of 1"}
    reads = {cells["batch"]: cells["one read"] for cells in draws}
    assert reads == {batch: pytest.approx(batch * VOCAB * 4 / 1e9 * 1e6) for batch in SIZES["cpu"].batches}


class Off(Drawing):
    """Of every kind, the first drawing is the CPU's own, which is right, as those by TorchDraws are. The others draw
    the tokens behind it."""

    made = 0

    def __init__(self, kind: Kind, logits_LV: torch.Tensor, draws: Draws | None = None) -> None:
        super().__init__(kind, logits_LV, draws)
        self._is_off = draws is None and Off.made % (1 + len(SIZES["cpu"].batches)) > 0
        Off.made += draws is None

    def draw(self) -> torch.Tensor:
        return super().draw() + int(self._is_off)


def test_tokens_that_the_cpu_does_not_draw_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Off, "made", 0)
    monkeypatch.setattr(step_sampler, "Drawing", Off)
    rows, faults = measured(tmp_path, monkeypatch)
    for column in ("as on the CPU", "as torch"):
        draws = [row.cells[column] for row in rows if row.table == "A draw"]
        assert Off.made and draws == ["0 of 3", "0 of 1"] * len(FEW)
    assert faults == [
        f"{kind.name}, batch {batch}: only 0 of {batch} tokens are those of the CPU"
        for kind in FEW
        for batch in SIZES["cpu"].batches
    ]


def test_a_draw_that_waits_for_the_device_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_sampler, "why_it_waits", lambda *_: "called a synchronizing CUDA operation")
    _, faults = measured(tmp_path, monkeypatch)
    assert len(faults) == len(FEW) * len(SIZES["cpu"].batches)
    assert faults[0] == "greedy, batch 3: the host waits for the device: called a synchronizing CUDA operation"
