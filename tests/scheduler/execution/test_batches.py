from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.future_rows import OWNER_SHIFT
from scheduler.execution.page_table import PageTable
from scheduler.plan import Grant, Join
from tests.scheduler.building import CPU, draw, greedy


def joins(rows: list[int]) -> list[Join]:
    """These rows join with a context of `row` tokens, and the token 100 * row."""
    return [Join(draw(row), row, 100 * row) for row in rows]


def relayed(rows: list[int]) -> list[Join]:
    """The same rows; a launch in flight draws their token."""
    return [replace(join, input_id=None) for join in joins(rows)]


def batch_of(rows: list[int]) -> ScheduleBatch:
    return ScheduleBatch.of(joins(rows), CPU)


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


def rows_of(batch: ScheduleBatch) -> list[int]:
    return [draw.row for draw in batch.draws]


def test_rows_that_join_with_a_token_that_the_host_knows() -> None:
    batch = batch_of([4, 2])
    batch.check_mirrors()
    assert batch.seq_lens_cpu.tolist() == [4, 2]
    assert batch.input_ids_B.tolist() == [400, 200]
    assert batch.rows_B.tolist() == [4, 2]


def test_rows_that_join_while_their_token_is_in_flight() -> None:
    batch = ScheduleBatch.of(relayed([3, 6]), CPU)
    batch.check_mirrors()
    assert (batch.seq_lens_cpu.tolist(), batch.input_ids_B.tolist()) == ([3, 6], [-3, -6])


def test_token_0_is_known() -> None:
    assert ScheduleBatch.of([Join(draw(3), 2, 0)], CPU).input_ids_B.tolist() == [0]


def test_a_batch_of_nobody_has_columns_of_length_0() -> None:
    batch = ScheduleBatch.of((), CPU)
    batch.advance()
    batch.check_mirrors()
    assert {tensor.shape for tensor in tensors(batch)} == {(0,)}
    assert {tensor.dtype for tensor in tensors(batch)} == {torch.int64, torch.float32}
    assert (len(batch), batch.longest, batch.members.owners) == (0, 0, ())
    batch.change((), joins([3]))
    batch.change((3,), ())
    batch.check_mirrors()
    assert {tensor.shape for tensor in tensors(batch)} == {(0,)}


def change_and_advance(batch: ScheduleBatch) -> None:
    batch.change((4, 9), joins([7]))
    batch.advance()


CHANGES: dict[str, Callable[[ScheduleBatch], None]] = {
    "advance": lambda batch: batch.advance(),
    "filter": lambda batch: batch.filter([2, 0]),
    "merge": lambda batch: batch.merge(batch_of([7])),
    "all of them": change_and_advance,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_launch_in_flight_holds_does_not_change(change: str) -> None:
    batch = batch_of([4, 2, 9])
    table = PageTable(10, 4, CPU)
    members = batch.members
    held = [*tensors(batch), members.owners_B, members.indices_B, batch.page_table(table, 2)]
    values, draws = [tensor.tolist() for tensor in held], batch.draws
    CHANGES[change](batch)
    assert batch.members is not None and len(batch.page_table(table, 2)) == len(batch)
    batch.check_mirrors()
    assert [tensor.tolist() for tensor in held] == values
    assert [draw.row for draw in draws] == [4, 2, 9]


def test_rows_leave_before_others_join_behind_them() -> None:
    batch = batch_of([4, 2, 9])
    batch.change((2,), relayed([7, 5]))
    batch.check_mirrors()
    assert (rows_of(batch), batch.input_ids_B.tolist()) == ([4, 9, 7, 5], [400, 900, -7, -5])
    batch.change((4,), [replace(joins([4])[0], draw=draw(4, owner_number=2))])  # its next owner
    assert [(joined.row, joined.owner_number) for joined in batch.draws] == [(9, 1), (7, 1), (5, 1), (4, 2)]
    batch.change((9, 7, 5, 4), ())
    batch.check_mirrors()
    assert len(batch) == 0


def test_flags_follow_the_rows() -> None:
    batch = batch_of([4, 2])
    assert batch.sampling.asking.all_greedy
    batch.merge(ScheduleBatch.of([Join(draw(5, replace(greedy(5), temperature=1.0)), 5, 500)], CPU))
    assert not batch.sampling.asking.all_greedy
    batch.filter([0, 1])
    assert batch.sampling.asking.all_greedy


def test_members_are_kept_until_a_row_joins_or_leaves_or_a_page_is_added_or_the_table_is_too_narrow() -> None:
    table = PageTable(10, 4, CPU)
    for row in (4, 2, 7):
        table.write(Grant(row, 3, 0, (10 * row, 10 * row + 1)))
    batch = batch_of([4, 2])
    first, pages = batch.members, batch.page_table(table, 1)
    assert (first.owners, first.rows_cpu.tolist(), first.indices_B.tolist()) == (((4, 1), (2, 1)), [4, 2], [0, 1])
    assert first.owners_B.tolist() == [1 << OWNER_SHIFT] * 2
    assert pages.tolist() == [[40], [20]]
    batch.advance()
    assert batch.members is first and batch.page_table(table, 1) is pages

    wider = batch.page_table(table, 2)
    assert wider.tolist() == [[40, 41], [20, 21]]
    assert batch.page_table(table, 1) is wider
    table.write(Grant(7, 4, 0, (77,)))  # another row's new owner
    assert batch.page_table(table, 2) is wider
    table.write(Grant(2, 3, 2, (22,)))
    assert batch.page_table(table, 3).tolist() == [[40, 41, 0], [20, 21, 22]]
    assert batch.members is first

    batch.change((), joins([7]))
    assert batch.members.owners == ((4, 1), (2, 1), (7, 1))
    assert batch.page_table(table, 1).tolist() == [[40], [20], [77]]
    batch.change((4,), ())
    assert batch.members.owners == ((2, 1), (7, 1)) and batch.page_table(table, 1).tolist() == [[20], [77]]


def test_a_page_added_within_the_width_of_the_table_is_not_missing() -> None:
    """A longer context beside it keeps the table wide, so its width alone would not ask for a new copy."""
    table = PageTable(10, 4, CPU)
    table.write(Grant(4, 1, 0, (40,)))
    table.write(Grant(2, 1, 0, (20, 21)))
    batch = batch_of([4, 2])
    before = batch.page_table(table, 2)
    table.write(Grant(4, 1, 1, (41,)))
    assert batch.page_table(table, 2).tolist() == [[40, 41], [20, 21]]
    assert before.tolist() == [[40, 0], [20, 21]]


OPERATIONS = st.lists(
    st.one_of(
        st.just(("advance", 0)),
        st.tuples(st.just("join"), st.integers(1, 3)),
        st.tuples(st.just("relayed"), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.integers(0, 2**16)),
    ),
    max_size=25,
)


@given(OPERATIONS)
def test_mirrors_stay_equal_whatever_happens(operations: list[tuple[str, int]]) -> None:
    """Everybody may leave."""
    batch, next_row = batch_of([1]), 2
    lengths = {1: 1}
    for name, argument in operations:
        if name == "advance":
            batch.advance()
            lengths = {row: length + 1 for row, length in lengths.items()}
            assert batch.longest == max(lengths.values(), default=0)
        elif name == "leave":
            leaves = [row for i, row in enumerate(lengths) if not argument >> (i % 16) & 1]
            batch.change(leaves, ())
            lengths = {row: length for row, length in lengths.items() if row not in leaves}
        else:
            rows = list(range(next_row, next_row + argument))
            batch.change((), relayed(rows) if name == "relayed" else joins(rows))
            lengths |= dict(zip(rows, rows, strict=True))
            next_row += argument
        batch.check_mirrors()
        assert rows_of(batch) == list(lengths)
        assert batch.seq_lens_cpu.tolist() == list(lengths.values())
        assert batch.sampling.params.seed_L.shape == (len(batch),)


@pytest.mark.parametrize("column", ["rows_B", "seq_lens_B", "seq_lens_cpu"])
def test_broken_mirrors_are_noticed(column: str) -> None:
    batch = batch_of([4, 2])
    setattr(batch, column, getattr(batch, column) + 1)
    with pytest.raises(AssertionError):
        batch.check_mirrors()
