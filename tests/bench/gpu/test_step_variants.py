"""The step `variants`: a line for each change of sizes. Wrong results are a fault; sizes that do not fit are none."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.gpu import step_variants
from bench.gpu.sheet import Folder, StepSheet
from bench.gpu.step_variants import SPLITS, TILES, measure_variants, words
from bench.records import Note, Row
from model.attention_cpu import CpuAttention
from tests.doubles.clock import VirtualClock


class DoesNotFit(Exception):
    """As Triton's OutOfResources."""


class Odd(CpuAttention):
    """Attends as a CPU does, but with some sizes wrongly or not at all."""

    def __init__(self, change: dict[str, int]) -> None:
        super().__init__(torch.float32)
        self.change = change

    def attend(self, q_THD: Tensor, kv_layer: Tensor, plan: Any) -> Tensor:
        if self.change == SPLITS[1]:
            raise DoesNotFit
        return super().attend(q_THD, kv_layer, plan) * (1.5 if self.change == TILES[1] else 1.0)


def records_of(tmp_path: Path) -> tuple[list[Row], list[Note]]:
    sheet = StepSheet(Folder(tmp_path), "variants", VirtualClock(), 1000.0, judged=False)
    measure_variants(sheet, "cpu")
    records = sheet.folder.records()
    return [each for each in records if isinstance(each, Row)], [each for each in records if isinstance(each, Note)]


def test_every_change_has_a_line_the_sizes_of_a_model_first(tmp_path: Path) -> None:
    rows, notes = records_of(tmp_path)
    for table, changes in (("Prompts", TILES), ("Decodes", SPLITS)):
        assert [row.cells["sizes"] for row in rows if row.table == table] == [words(change) for change in changes]
        assert changes[0] == {} and words({}) == "as they are"
    assert all(value is not None for row in rows for value in row.cells.values())
    assert len(notes) == 1 and not notes[0].fault


def test_sizes_that_compute_something_else_are_a_fault_and_those_that_do_not_fit_have_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_variants, "attention_with", lambda _, change: Odd(change))
    monkeypatch.setattr(step_variants, "unfit", lambda: (DoesNotFit,))
    rows, notes = records_of(tmp_path)
    assert [note.text for note in notes if note.fault] == [f"Prompts, {words(TILES[1])}, 33 tokens: off by 0.5"]
    [empty] = [row.cells for row in rows if row.cells["error"] is None]
    assert empty == {"sizes": words(SPLITS[1]), "2 x 17": None, "error": None}
    assert f"{words(SPLITS[1])}: DoesNotFit" in [note.text for note in notes]


def test_every_change_is_of_sizes_that_there_are_and_none_comes_twice() -> None:
    pytest.importorskip("triton")
    from model.attention_triton import SPLIT, Sizes  # noqa: PLC0415 - an optional package

    names = {field.name for field in fields(Sizes)}
    for changes in (TILES, SPLITS):
        assert len({tuple(sorted(change.items())) for change in changes}) == len(changes)
        assert all(names >= set(change) for change in changes)
    assert all(SPLIT % change.get("split_step", 64) == 0 for change in SPLITS)
