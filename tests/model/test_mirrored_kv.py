"""A device pool and its host twin, on a CPU: nothing passes between them but by staging."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from model.mirrored_kv import MirroredKv, page_runs
from protocol.kv_layout import KvLayout

LAYOUT = KvLayout(2, 1, 4, 4, "bfloat16")


@given(st.lists(st.integers(1, 30), unique=True))
def test_runs_cover_the_pages_in_order(pages: list[int]) -> None:
    runs = list(page_runs(pages))
    assert [page for start, end in runs for page in range(start, end)] == pages
    assert all(end != following for (_, end), (following, _) in itertools.pairwise(runs))


def test_stage_out_copies_the_pages_of_one_layer() -> None:
    kv = MirroredKv(LAYOUT, 8, "cpu")
    for layer in range(2):
        kv.layer(layer).copy_(torch.randn(kv.layer(layer).shape))
    kv.stage_out(1, [3, 4, 6])
    for page in range(8):
        same = kv.layer(1)[page].contiguous().view(torch.uint8).numpy().tobytes()
        assert (bytes(kv.page_bytes_view(1, page, 1)) == same) == (page in (3, 4, 6))
        assert not any(kv.page_bytes_view(0, page, 1))


def test_stage_in_copies_the_pages_of_every_layer() -> None:
    kv = MirroredKv(LAYOUT, 8, "cpu")
    for layer in range(2):
        kv.page_bytes_view(layer, 2, 2)[:] = bytes(range(1, 65)) * (2 * LAYOUT.page_bytes // 64)
    assert not kv.layer(0).any()
    kv.stage_in([3])
    for layer in range(2):
        assert kv.layer(layer)[3].any()
        assert not kv.layer(layer)[2].any()
