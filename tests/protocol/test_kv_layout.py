from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.kv_layout import (
    GROUP_ALIGNMENT,
    ITEM_BYTES,
    KvLayout,
    LayerGroup,
    longest_choices,
    mismatch,
    pages_for_choices,
    settled_pages,
    touched,
)
from protocol.message import VERSION, Boundary

LAYOUT = KvLayout.uniform(num_layers=3, num_kv_heads=2, head_dim=8, page_size=16, dtype="bfloat16")


PAGE_BYTES = LAYOUT.layer(0).page_bytes
TARGET, DRAFT = LayerGroup(num_layers=2, num_kv_heads=4, head_dim=64), LayerGroup(1, 2, 32, lookahead=1)
SIZES = ("num_layers", "num_kv_heads", "head_dim")
TWO_GROUPS = KvLayout((TARGET, DRAFT), page_size=5, dtype="float32")


def test_sizes() -> None:
    layer = LAYOUT.layer(2)
    assert (layer.head_bytes, layer.token_bytes, layer.page_bytes) == (8 * 2, 2 * 8 * 2, 2 * 16 * 32)
    assert LAYOUT.all_page_bytes == LAYOUT.pool_bytes(1) == 3 * layer.page_bytes


def test_layers_are_numbered_through_all_groups() -> None:
    assert (TWO_GROUPS.num_layers, TWO_GROUPS.lookahead, LAYOUT.lookahead) == (3, 1, 0)
    assert [TWO_GROUPS.place(layer) for layer in range(3)] == [(0, 0), (0, 1), (1, 0)]
    assert [TWO_GROUPS.layer(layer).token_bytes for layer in range(3)] == [4 * 64 * 4, 4 * 64 * 4, 2 * 32 * 4]
    assert TWO_GROUPS.all_page_bytes == 2 * 5 * (2 * 1024 + 256)
    assert TWO_GROUPS.largest_page_bytes == 2 * 5 * 1024
    for layer in (-1, 3):
        with pytest.raises(AssertionError):
            TWO_GROUPS.layer(layer)


shapes = st.builds(LayerGroup, st.integers(1, 3), st.integers(1, 3), st.integers(1, 9))
layouts = st.builds(
    KvLayout, st.lists(shapes, min_size=1, max_size=4).map(tuple), st.integers(1, 5), st.sampled_from(list(ITEM_BYTES))
)


@given(layouts, st.integers(1, 6))
def test_pages_of_all_layers_lie_in_the_pool_and_share_no_byte(layout: KvLayout, num_pages: int) -> None:
    spans = [layout.span(num_pages, layer, page, 1) for layer in range(layout.num_layers) for page in range(num_pages)]
    assert all(one.stop <= two.start for one, two in pairwise(spans))
    assert (spans[0].start, spans[-1].stop) == (0, layout.pool_bytes(num_pages))
    assert sum(span.stop - span.start for span in spans) == num_pages * layout.all_page_bytes
    assert all(group.start % GROUP_ALIGNMENT == 0 for group in layout.group_spans(num_pages))
    assert layout.pool_bytes(num_pages) - num_pages * layout.all_page_bytes < GROUP_ALIGNMENT * len(layout.groups)


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_pages_hold_all_tokens_and_none_is_idle(num_tokens: int, page_size: int) -> None:
    pages = replace(LAYOUT, page_size=page_size).num_pages(num_tokens)
    assert (pages - 1) * page_size < num_tokens <= pages * page_size


def test_a_pool_is_its_layers_one_after_the_other() -> None:
    spans = [LAYOUT.span(5, layer, page, 1) for layer in range(LAYOUT.num_layers) for page in range(5)]
    assert [span.start for span in spans] == list(range(0, LAYOUT.pool_bytes(5), PAGE_BYTES))
    assert all(span.stop - span.start == PAGE_BYTES for span in spans)
    assert LAYOUT.span(5, 1, 2, 3) == slice(spans[7].start, spans[9].stop)
    assert LAYOUT.pool_tokens(5) == 4 * 16
    for layer, start, count in ((3, 0, 1), (0, 4, 2), (0, -1, 1)):
        with pytest.raises(AssertionError):
            LAYOUT.span(5, layer, start, count)


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 20))
def test_touched_pages_are_those_that_hold_a_token_of_the_range(start: int, count: int, size: int) -> None:
    pages = touched(start, start + count, size)
    assert list(range(pages.start, pages.stop)) == sorted({token // size for token in range(start, start + count)})


@given(st.integers(1, 100), st.integers(1, 5), st.integers(1, 60), st.sampled_from([1, 3, 16]), st.integers(0, 4))
def test_the_longest_choices_are_exactly_what_the_pages_hold(
    prompt: int, n: int, pages: int, size: int, ahead: int
) -> None:
    longest = longest_choices(prompt, n, pages, size, ahead)
    if longest >= prompt:
        assert pages_for_choices(prompt, longest, n, size, ahead) <= pages
    assert pages_for_choices(prompt, max(prompt, longest + 1), n, size, ahead) > pages


@given(st.integers(0, 60), st.sampled_from([1, 3, 16]), st.integers(0, 4))
def test_settled_pages_hold_only_tokens_that_look_ahead_to_known_ones(length: int, size: int, ahead: int) -> None:
    settled = settled_pages(length, size, ahead)
    pages = [range(start, start + size) for start in range(0, length, size)]
    assert [page[-1] + ahead < length for page in pages] == [True] * settled + [False] * (len(pages) - settled)


@pytest.mark.parametrize(
    "wrong,where",
    [
        *(({"groups": ({**vars(DRAFT), name: 0},)}, f"groups.0.{name}") for name in SIZES),
        ({"groups": ({**vars(DRAFT), "head_dim": -1},)}, "groups.0.head_dim"),
        ({"page_size": 0}, "page_size"),
        ({"groups": ()}, "groups"),
    ],
)
def test_sizes_are_at_least_one_on_arrival(wrong: dict[str, Any], where: str) -> None:
    layouts = Boundary("layouts", (KvLayout,))
    fields = {"groups": (vars(DRAFT),), "page_size": 5, "dtype": "float32"}
    assert layouts.decode(msgpack.packb([VERSION, "KvLayout", fields])) == replace(TWO_GROUPS, groups=(DRAFT,))
    with pytest.raises(WireError, match=f"KvLayout.{where}: got .* at least 1|KvLayout.{where}: got .* or equal to 1"):
        layouts.decode(msgpack.packb([VERSION, "KvLayout", fields | wrong]))


def test_a_strange_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"KvLayout.dtype: got 'int8', expected one of float32, bfloat16, float16"):
        replace(LAYOUT, dtype="int8")


@pytest.mark.parametrize("page_size", [16, 1])
def test_layouts_that_are_equal_but_for_the_page_size_match(page_size: int) -> None:
    assert mismatch(LAYOUT, replace(LAYOUT, page_size=page_size), "p", "d") is None


@pytest.mark.parametrize("name,value", [("num_layers", 4), ("num_kv_heads", 1), ("head_dim", 16), ("lookahead", 1)])
def test_a_mismatch_names_the_field_and_both_values(name: str, value: int) -> None:
    (group,) = LAYOUT.groups
    theirs = replace(LAYOUT, groups=(replace(group, **{name: value}),))
    ours = getattr(group, name)
    assert mismatch(LAYOUT, theirs, "p", "d") == f"{name} is {ours} on p, {value} on d"
    assert mismatch(theirs, LAYOUT, "d", "p") == f"{name} is {value} on d, {ours} on p"


def test_a_mismatch_of_several_groups_names_the_group() -> None:
    def against(*groups: LayerGroup) -> str | None:
        return mismatch(TWO_GROUPS, replace(TWO_GROUPS, groups=groups), "p", "d")

    assert against(TARGET, replace(DRAFT, head_dim=16)) == "head_dim of layer group 1 is 32 on p, 16 on d"
    assert against(DRAFT, TARGET) == "num_layers of layer group 0 is 2 on p, 1 on d"
    assert against(TARGET) == "the number of layer groups (a model's and its draft's) is 2 on p, 1 on d"
    assert against(TARGET, DRAFT) is None
    assert mismatch(LAYOUT, replace(LAYOUT, dtype="float32"), "p", "d") == "dtype is bfloat16 on p, float32 on d"
