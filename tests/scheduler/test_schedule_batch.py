from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scheduler.kv_book import Holding
from scheduler.req import Req
from scheduler.schedule_batch import ScheduleBatch
from tests.scheduler.building import CPU, greedy, make_req


def reqs_at(rows: list[int], outputs: int = 1) -> list[Req]:
    """Requests with these rows; each prompt is `row` tokens long, each output is 100 * row + index."""
    made = []
    for row in rows:
        req = make_req(tuple(range(row)), greedy(50), name=f"r{row}")
        req.holding = Holding(row, 0, [])
        req.outputs = [100 * row + index for index in range(outputs)]
        made.append(req)
    return made


def prebuilt(rows: list[int], outputs: int = 1) -> ScheduleBatch:
    return ScheduleBatch.prebuilt(reqs_at(rows, outputs), CPU)


def tensors(batch: ScheduleBatch) -> list[torch.Tensor]:
    columns = batch.sampling
    return [
        batch.rows_B,
        batch.seq_lens_B,
        torch.from_numpy(batch.seq_lens_cpu),
        batch.input_ids_B,
        columns.params.seed_L,
        columns.params.temperature_L,
        columns.params.choice_L,
    ]


@pytest.mark.parametrize("outputs", [1, 3])
def test_prebuilt(outputs: int) -> None:
    batch = prebuilt([4, 2], outputs)
    batch.check_mirrors()
    assert batch.seq_lens_cpu.tolist() == [4 + outputs - 1, 2 + outputs - 1]
    assert batch.input_ids_B.tolist() == [400 + outputs - 1, 200 + outputs - 1]
    assert batch.rows_B.tolist() == [4, 2]


def test_launched() -> None:
    batch = ScheduleBatch.launched(reqs_at([3, 6], outputs=0), CPU)
    batch.check_mirrors()
    assert (batch.seq_lens_cpu.tolist(), batch.input_ids_B.tolist()) == ([3, 6], [-3, -6])


def test_a_request_without_a_row_cannot_decode() -> None:
    with pytest.raises(AssertionError, match="holds no row and no pages"):
        ScheduleBatch.launched([make_req()], CPU)


def filter_merge_advance(batch: ScheduleBatch) -> None:
    batch.filter([1])
    batch.merge(prebuilt([7]))
    batch.advance()


CHANGES: dict[str, Callable[[ScheduleBatch], None]] = {
    "advance": lambda batch: batch.advance(),
    "filter": lambda batch: batch.filter([2, 0]),
    "merge": lambda batch: batch.merge(prebuilt([7])),
    "all of them": filter_merge_advance,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_launch_in_flight_holds_does_not_change(change: str) -> None:
    batch = prebuilt([4, 2, 9])
    held, values = tensors(batch), [tensor.tolist() for tensor in tensors(batch)]
    reqs = batch.reqs
    CHANGES[change](batch)
    batch.check_mirrors()
    assert [tensor.tolist() for tensor in held] == values
    assert [req.held.row for req in reqs] == [4, 2, 9]


def test_filter_keeps_and_orders() -> None:
    batch = prebuilt([4, 2, 9])
    batch.filter([2, 0])
    assert ([req.held.row for req in batch.reqs], batch.input_ids_B.tolist()) == ([9, 4], [900, 400])
    batch.check_mirrors()


def test_flags_follow_the_requests() -> None:
    batch = prebuilt([4, 2])
    assert batch.sampling.asking.all_greedy
    hot = reqs_at([5])
    object.__setattr__(hot[0].sampling, "temperature", 1.0)
    batch.merge(ScheduleBatch.prebuilt(hot, CPU))
    assert not batch.sampling.asking.all_greedy
    batch.filter([0, 1])
    assert batch.sampling.asking.all_greedy


OPERATIONS = st.lists(
    st.one_of(
        st.just(("advance", 0)),
        st.tuples(st.just("join"), st.integers(1, 3)),
        st.tuples(st.just("launched"), st.integers(1, 3)),
        st.tuples(st.just("filter"), st.integers(0, 2**16)),
    ),
    max_size=25,
)


@given(OPERATIONS)
def test_mirrors_stay_equal_whatever_happens(operations: list[tuple[str, int]]) -> None:
    batch, next_row = prebuilt([1]), 2
    lengths = {1: 1}
    for name, argument in operations:
        if name == "advance":
            batch.advance()
            lengths = {row: length + 1 for row, length in lengths.items()}
        elif name == "filter":
            keep = [i for i in range(len(batch)) if argument >> (i % 16) & 1] or [0]
            batch.filter(keep)
            lengths = {req.held.row: lengths[req.held.row] for req in batch.reqs}
        else:
            rows = list(range(next_row, next_row + argument))
            make = ScheduleBatch.launched if name == "launched" else ScheduleBatch.prebuilt
            batch.merge(make(reqs_at(rows), CPU))
            lengths |= dict(zip(rows, rows, strict=True))
            next_row += argument
        batch.check_mirrors()
        assert batch.seq_lens_cpu.tolist() == [lengths[req.held.row] for req in batch.reqs]
        assert batch.sampling.params.seed_L.shape == (len(batch),)


def test_broken_mirrors_are_noticed() -> None:
    batch = prebuilt([4, 2])
    batch.seq_lens_B = batch.seq_lens_B + 1
    with pytest.raises(AssertionError):
        batch.check_mirrors()
