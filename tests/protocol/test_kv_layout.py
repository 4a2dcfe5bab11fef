from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kv_layout import ITEM_BYTES, KvLayout, longest_choices, mismatch, pages_for_choices, touched

LAYOUT = KvLayout(num_layers=3, num_kv_heads=2, head_dim=8, page_size=16, dtype="bfloat16")


def test_sizes() -> None:
    assert LAYOUT.token_bytes == 2 * 8 * 2
    assert LAYOUT.page_bytes == 2 * 16 * 32


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_pages_hold_all_tokens_and_none_is_idle(num_tokens: int, page_size: int) -> None:
    pages = replace(LAYOUT, page_size=page_size).num_pages(num_tokens)
    assert (pages - 1) * page_size < num_tokens <= pages * page_size


def test_a_pool_is_its_layers_one_after_the_other() -> None:
    spans = [LAYOUT.span(5, layer, page, 1) for layer in range(LAYOUT.num_layers) for page in range(5)]
    assert [each.start for each in spans] == list(range(0, LAYOUT.pool_bytes(5), LAYOUT.page_bytes))
    assert all(each.stop - each.start == LAYOUT.page_bytes for each in spans)
    assert LAYOUT.span(5, 1, 2, 3) == slice(spans[7].start, spans[9].stop)
    assert LAYOUT.pool_tokens(5) == 4 * 16
    for layer, start, count in ((3, 0, 1), (0, 4, 2), (0, -1, 1)):
        with pytest.raises(AssertionError):
            LAYOUT.span(5, layer, start, count)


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 20))
def test_touched_pages_are_those_that_hold_a_token_of_the_range(start: int, count: int, size: int) -> None:
    pages = touched(start, start + count, size)
    assert list(range(pages.start, pages.stop)) == sorted({token // size for token in range(start, start + count)})


@given(st.integers(1, 100), st.integers(1, 5), st.integers(1, 60), st.sampled_from([1, 3, 16]))
def test_the_longest_choices_are_exactly_what_the_pages_hold(prompt: int, n: int, pages: int, size: int) -> None:
    longest = longest_choices(prompt, n, pages, size)
    if longest >= prompt:
        assert pages_for_choices(prompt, longest, n, size) <= pages
    assert pages_for_choices(prompt, max(prompt, longest + 1), n, size) > pages


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
