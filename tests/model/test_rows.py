"""Rows that are read a few at a time are those of the whole weight, however they are joined, ordered and asked for."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import rows
from model.linear import Linear, Pack, Unpacked, parallel_linears, unpacked
from model.rows import ReadRows, Rows, joined, ordered, slices_of, whole
from tests.model.routing import numbers


def read(weight_OI: torch.Tensor) -> Rows:
    """The same rows, read one range at a time."""
    return ReadRows(weight_OI.shape, lambda start, end: weight_OI[start:end].clone())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.data())
def test_joined_rows_are_those_of_one_part_behind_the_other(counts: list[int], data: st.DataObject) -> None:
    parts = [numbers(count, 3, seed=index) for index, count in enumerate(counts)]
    together, lazy = torch.cat(parts), joined([read(part) if index % 2 else part for index, part in enumerate(parts)])
    assert lazy.shape == together.shape and torch.equal(whole(lazy), together)
    start = data.draw(st.integers(0, sum(counts)))
    end = data.draw(st.integers(start, sum(counts)))
    assert torch.equal(lazy[start:end], together[start:end])


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(4)), st.integers(1, 3), st.data())
def test_ordered_rows_have_the_dimensions_of_each_head_in_their_order(
    order: list[int], heads: int, data: st.DataObject
) -> None:
    weight_OI = numbers(4 * heads, 3, seed=1)
    expected_OI = torch.cat([weight_OI[4 * head : 4 * head + 4][order] for head in range(heads)])
    lazy = ordered(read(weight_OI), order)
    start = data.draw(st.integers(0, 4 * heads))
    end = data.draw(st.integers(start, 4 * heads))
    assert torch.equal(lazy[start:end], expected_OI[start:end]) and torch.equal(whole(lazy), expected_OI)


@pytest.mark.parametrize("at_once", [1, 7, 100, 1 << 17])
@pytest.mark.parametrize("multiple", [1, 4])
def test_slices_cover_all_rows_once(at_once: int, multiple: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "AT_ONCE", at_once)
    for count in (1, 4, 5, 17):
        parts = list(slices_of(numbers(count, 6, seed=1), multiple))
        assert [index for part in parts for index in range(part.start, part.stop)] == list(range(count))
        assert all((part.stop - part.start) % multiple == 0 for part in parts[:-1])
        assert all((part.stop - part.start) * 6 <= max(at_once, 6 * multiple) for part in parts)


@pytest.mark.parametrize("pack", [None, Pack(unpacked)], ids=["merged", "packed"])
def test_linears_are_the_same_however_their_weights_are_read(pack: Pack | None) -> None:
    weights, x_TI = [numbers(size, 6, seed=size) for size in (5, 8)], numbers(3, 6, seed=1)
    kinds: tuple[Callable[[torch.Tensor], Unpacked], ...] = (Linear, lambda weight_OI: Unpacked(read(weight_OI)))
    by_kind = [parallel_linears([kind(each) for each in weights], merge=True, pack=pack)(x_TI) for kind in kinds]
    assert all(len(products) == 1 for products in by_kind)
    assert torch.equal(by_kind[0][0], by_kind[1][0])
    assert torch.allclose(by_kind[0][0], x_TI @ torch.cat(weights).T, atol=1e-5)
