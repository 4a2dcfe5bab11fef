import pytest
import torch

from scheduler.row_pool import RowPool

CPU = torch.device("cpu")


def test_a_row_names_its_pages_and_row_zero_is_never_handed_out() -> None:
    rows = RowPool(4, 3, CPU)
    got = [rows.allocate([10 + i, 20 + i]) for i in range(3)]
    assert sorted(got) == [1, 2, 3]
    with pytest.raises(AssertionError, match="num_free"):
        rows.allocate([1])
    assert rows.num_free == 0
    for index, row in enumerate(got):
        assert rows.req_to_page[row, :2].tolist() == [10 + index, 20 + index]
        assert rows.req_to_page_cpu[row, :2].tolist() == [10 + index, 20 + index]
    assert rows.req_to_page[0].tolist() == [0, 0, 0]


def test_a_reused_row_has_a_new_generation_and_its_new_pages() -> None:
    rows = RowPool(3, 2, CPU)
    first = rows.allocate([5, 6])
    before = rows.generation(first)
    rows.reuse([first])
    assert rows.allocate([7]) == first
    assert rows.generation(first) == before + 1
    assert rows.req_to_page[first, 0] == 7


def test_double_free_is_refused() -> None:
    rows = RowPool(3, 2, CPU)
    row = rows.allocate([])
    rows.reuse([row])
    with pytest.raises(AssertionError, match=f"row {row} is given back twice"):
        rows.reuse([row])
    with pytest.raises(AssertionError):
        rows.reuse([0])


def test_a_pool_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_rows: got 1, expected at least 2"):
        RowPool(1, 2, CPU)
