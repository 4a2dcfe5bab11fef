"""The check of a graph against the forward that it captured: how near it must be, and how much memory that takes."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from model import graphs
from model.cuda_capture import Run
from model.graphs import GraphedRunner, Graphs, Lanes, is_close
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from tests.doubles.hash_model import FakeRunner

FAKE = FakeRunner(vocab_size=97, context_length=64)
VOCAB = 1000
ROW_BYTES = 4 * VOCAB


def test_why_there_are_no_graphs_is_kept() -> None:
    def fail(run: Run) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing")

    kv = PagedKv(FAKE.kv_layout(4), 9)
    runner = GraphedRunner(FAKE, fail)
    assert runner.why_none == "not captured yet"
    runner.capture(kv, 4, 8)
    assert runner.why_none == "operation not permitted when stream is capturing"
    good = GraphedRunner(FAKE, lambda run: run)
    good.capture(kv, 9, 8)
    assert good.why_none == ""


class NewMemory(TorchDispatchMode):  # type: ignore[misc]
    """The bytes of the largest tensor that an operation has made, but for those of `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.largest_bytes = 0
        self._is_on = True

    def forward(self, inp: ModelInput, kv: PagedKv) -> tuple[torch.Tensor]:
        """Logits of VOCAB tokens for each lane."""
        self._is_on = False
        found = inp.input_ids_T[:, None] + torch.linspace(-2.0, 2.0, VOCAB)
        self._is_on = True
        return (found,)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        if self._is_on and isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in given:
            self.largest_bytes = max(self.largest_bytes, made.nbytes)
        return made


def test_the_check_of_a_graph_takes_memory_for_a_few_rows_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy of all logits of 1,024 requests and a vocabulary of 152k would take 622 MB, beside KV that has all
    the memory."""
    monkeypatch.setattr(graphs, "CHECK_BYTES", 3 * ROW_BYTES, raising=False)
    memory = NewMemory()
    made, lanes, results = (
        Graphs(memory.forward, lambda run: run, lambda _: None),
        Lanes(64, 2, 4, FAKE.device),
        torch.empty(64, VOCAB),
    )
    with memory:
        made._captured(lanes.first(64), PagedKv(FAKE.kv_layout(4), 9), [], [results])
    assert not results.isnan().any()
    assert 0 < memory.largest_bytes <= 3 * ROW_BYTES


@pytest.mark.parametrize("row", [0, 3, 63])
@pytest.mark.parametrize("change, expected", [(0.0, True), (0.09, True), (0.11, False), (float("nan"), False)])
def test_a_graph_may_differ_by_a_hundredth_of_the_largest_logit_of_all_rows(
    row: int, change: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "CHECK_BYTES", 3 * 400)
    wanted_BN = torch.zeros(64, 100)
    wanted_BN[5, 7] = -10.0
    found_BN = wanted_BN.clone()
    found_BN[row, 99] += change
    assert is_close(found_BN, wanted_BN) == expected
