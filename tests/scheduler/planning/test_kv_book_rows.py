import pytest

from scheduler.planning.kv_book import RowPool


def test_every_row_is_handed_out_once_and_row_zero_never() -> None:
    rows = RowPool(4)
    assert sorted(rows.allocate() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(AssertionError, match="num_free"):
        rows.allocate()
    assert rows.num_free == 0


def test_a_reused_row_has_a_new_generation() -> None:
    rows = RowPool(3)
    first = rows.allocate()
    before = rows.generation(first)
    rows.reuse([first])
    assert rows.allocate() == first
    assert rows.generation(first) == before + 1


def test_double_free_is_refused() -> None:
    rows = RowPool(3)
    row = rows.allocate()
    rows.reuse([row])
    with pytest.raises(AssertionError, match=f"row {row} is given back twice"):
        rows.reuse([row])
    with pytest.raises(AssertionError):
        rows.reuse([0])


def test_a_pool_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_rows: got 1, expected at least 2"):
        RowPool(1)
