from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kv_layout import ITEM_BYTES, KvLayout, mismatch

LAYOUT = KvLayout(num_layers=3, num_kv_heads=2, head_dim=8, page_size=16, dtype="bfloat16")


def test_sizes() -> None:
    assert LAYOUT.token_bytes == 2 * 8 * 2
    assert LAYOUT.page_bytes == 2 * 16 * 32


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_pages_hold_all_tokens_and_none_is_idle(num_tokens: int, page_size: int) -> None:
    pages = replace(LAYOUT, page_size=page_size).num_pages(num_tokens)
    assert (pages - 1) * page_size < num_tokens <= pages * page_size


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "head_dim", "page_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_at_least_one(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"KvLayout.{name}: got {value}, expected at least 1"):
        replace(LAYOUT, **{name: value})  # type: ignore[arg-type]


def test_a_strange_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"KvLayout.dtype: got 'int8', expected one of float32, bfloat16, float16"):
        replace(LAYOUT, dtype="int8")


@pytest.mark.parametrize("page_size", [16, 1])
def test_layouts_that_are_equal_but_for_the_page_size_match(page_size: int) -> None:
    assert mismatch(LAYOUT, replace(LAYOUT, page_size=page_size), "p", "d") is None


@pytest.mark.parametrize("name,value", [("num_layers", 4), ("num_kv_heads", 1), ("head_dim", 16), ("dtype", "float32")])
def test_a_mismatch_names_the_field_and_both_values(name: str, value: int | str) -> None:
    theirs = replace(LAYOUT, **{name: value})  # type: ignore[arg-type]
    ours = getattr(LAYOUT, name)
    assert mismatch(LAYOUT, theirs, "p", "d") == f"{name} is {ours} on p, {value} on d"
    assert mismatch(theirs, LAYOUT, "d", "p") == f"{name} is {value} on d, {ours} on p"


def test_every_dtype_has_a_size() -> None:
    assert {name: replace(LAYOUT, dtype=name).token_bytes for name in ITEM_BYTES} == {
        "float32": 64,
        "bfloat16": 32,
        "float16": 32,
    }
