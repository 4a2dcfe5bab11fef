"""One allocation seen as layers, pages and bytes."""

import pytest
import torch

from model.paged_kv import TORCH_DTYPES, PagedKv
from protocol.kv_layout import ITEM_BYTES, KvLayout


@pytest.mark.parametrize("dtype", list(ITEM_BYTES))
def test_bytes_and_tensors_are_the_same_memory(dtype: str) -> None:
    kv = PagedKv(KvLayout(2, 3, 4, 5, dtype), 6)
    assert kv.layer(1).shape == (6, 2, 5, 3, 4) and kv.layer(1).dtype == TORCH_DTYPES[dtype]
    assert not kv.layer(0).any() and not kv.layer(1).any()
    kv.layer(1)[3] = torch.arange(2 * 5 * 3 * 4).view(2, 5, 3, 4)
    view = kv.page_bytes_view(1, 3, 1)
    assert view.nbytes == kv.layout.page_bytes
    assert bytes(view) == kv.layer(1)[3].contiguous().view(torch.uint8).numpy().tobytes()
    kv.page_bytes_view(0, 4, 2)[: kv.layout.page_bytes] = view
    assert torch.equal(kv.layer(0)[4], kv.layer(1)[3]) and not kv.layer(0)[5].any()
    assert kv.page_bytes_view(0, 6, 0).nbytes == 0


@pytest.mark.parametrize("layer, start, count", [(2, 0, 1), (0, 5, 2), (0, -1, 1), (-1, 0, 1)])
def test_views_outside_the_storage_are_our_own_bug(layer: int, start: int, count: int) -> None:
    kv = PagedKv(KvLayout(2, 1, 2, 4, "float32"), 6)
    with pytest.raises(AssertionError):
        kv.page_bytes_view(layer, start, count)


def test_copy_pages_in_every_layer() -> None:
    kv = PagedKv(KvLayout(3, 1, 2, 4, "bfloat16"), 8)
    for layer in range(3):
        kv.layer(layer).copy_(torch.randn(kv.layer(layer).shape))
    before = [kv.layer(layer).clone() for layer in range(3)]
    kv.copy_pages(torch.tensor([1, 1, 5]), torch.tensor([2, 7, 6]))
    kv.copy_pages(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    for layer in range(3):
        expected = before[layer][[0, 1, 1, 3, 4, 5, 5, 1]]
        assert torch.equal(kv.layer(layer), expected)


def test_write_writes_its_slots_only() -> None:
    kv = PagedKv(KvLayout(1, 2, 3, 4, "float32"), 5)
    k, v = torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    kv.write(0, kv.token_rows(torch.tensor([6, 19, 4])), k.flatten(1), v.flatten(1))
    layer = kv.layer(0)
    assert torch.equal(layer[1, 0, 2], k[0]) and torch.equal(layer[4, 1, 3], v[1]) and torch.equal(layer[1, 0, 0], k[2])
    assert int((layer != 0).any(dim=(-1, -2)).sum()) == 6
