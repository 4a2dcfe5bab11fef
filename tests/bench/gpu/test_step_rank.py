"""The step `rank`: what it compares, and that it notices a call or a forward that differs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.gpu import step_rank
from bench.gpu.sheet import Folder, StepSheet
from bench.gpu.step_rank import calls_of, check_values, measure_rank, one_rank
from bench.records import Note, Row
from tests.doubles.clock import VirtualClock

CPU = torch.device("cpu")


def test_every_call_is_checked_and_both_calls_are_right() -> None:
    with one_rank(CPU) as ranks:
        for call in calls_of(ranks, 3).values():
            check_values(call, torch.randn(1, 3, 8), CPU)


def test_a_call_that_gives_something_else_is_noticed_also_if_only_its_replay_does() -> None:
    given_RPE = torch.randn(1, 3, 8)
    with pytest.raises(RuntimeError, match="a call gives other values"):
        check_values(lambda given: given + 1, given_RPE, CPU)
    first = given_RPE.clone()

    def as_recorded(given: Tensor) -> Tensor:
        return first

    with pytest.raises(RuntimeError, match="a replayed call gives other values"):
        check_values(as_recorded, given_RPE, CPU)


def measured(folder: Path) -> tuple[list[Row], list[Note]]:
    sheet = StepSheet(Folder(folder), "rank", VirtualClock(), 1000.0, judged=False)
    measure_rank(sheet, "cpu")
    records = sheet.folder.records()
    return [each for each in records if isinstance(each, Row)], [each for each in records if isinstance(each, Note)]


def test_the_step_has_a_row_for_each_call_and_each_batch(tmp_path: Path) -> None:
    rows, notes = measured(tmp_path)
    assert [row.cells["call"] for row in rows if "call" in row.cells] == ["gather", "exchange"] * 2
    assert [row.cells["batch"] for row in rows if "batch" in row.cells] == [1, 3]
    assert not any(note.fault for note in notes) and "stands in for NCCL" in notes[0].text


def test_logits_that_are_far_from_those_without_a_group_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_rank, "relative_error", lambda found, expected: float("1e-3"))
    _, notes = measured(tmp_path)
    faults = [note.text for note in notes if note.fault]
    assert len(faults) == 4 and faults[0] == "batch 1, called: logits differ by 0.001 from those without a group"
