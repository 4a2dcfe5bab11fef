"""One allocation seen as layers, pages and bytes."""

import pytest
import torch

from model.paged_kv import TORCH_DTYPES, PagedKv
from protocol.kv_layout import ITEM_BYTES, KvLayout, LayerGroup


@pytest.mark.parametrize("dtype", list(ITEM_BYTES))
def test_bytes_and_tensors_are_the_same_memory(dtype: str) -> None:
    kv = PagedKv(KvLayout.uniform(2, 3, 4, 5, dtype), 6)
    assert kv.layer(1).shape == (6, 2, 5, 3, 4) and kv.layer(1).dtype == TORCH_DTYPES[dtype]
    assert not kv.layer(0).any() and not kv.layer(1).any()
    kv.layer(1)[3] = torch.arange(2 * 5 * 3 * 4).view(2, 5, 3, 4)
    view = kv.page_bytes_view(1, 3, 1)
    assert view.nbytes == kv.layout.layer(0).page_bytes
    assert bytes(view) == kv.layer(1)[3].contiguous().view(torch.uint8).numpy().tobytes()
    kv.page_bytes_view(0, 4, 2)[: kv.layout.layer(0).page_bytes] = view
    assert torch.equal(kv.layer(0)[4], kv.layer(1)[3]) and not kv.layer(0)[5].any()
    assert kv.page_bytes_view(0, 6, 0).nbytes == 0


@pytest.mark.parametrize("layer, start, count", [(2, 0, 1), (0, 5, 2), (0, -1, 1), (-1, 0, 1)])
def test_views_outside_the_storage_are_our_own_bug(layer: int, start: int, count: int) -> None:
    kv = PagedKv(KvLayout.uniform(2, 1, 2, 4, "float32"), 6)
    with pytest.raises(AssertionError):
        kv.page_bytes_view(layer, start, count)


def test_copy_pages_in_every_layer() -> None:
    kv = PagedKv(KvLayout.uniform(3, 1, 2, 4, "bfloat16"), 8)
    for layer in range(3):
        kv.layer(layer).copy_(torch.randn(kv.layer(layer).shape))
    before = [kv.layer(layer).clone() for layer in range(3)]
    kv.copy_pages(torch.tensor([1, 1, 5]), torch.tensor([2, 7, 6]))
    kv.copy_pages(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    for layer in range(3):
        expected = before[layer][[0, 1, 1, 3, 4, 5, 5, 1]]
        assert torch.equal(kv.layer(layer), expected)


@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("group, layers", [(0, (0, 1)), (1, (2,))])
def test_tokens_move_between_slots_in_the_layers_of_one_group(
    group: int, layers: tuple[int, ...], page_size: int
) -> None:
    """Slots that are both read and written give what they held before; page 0 may be written many times."""
    layout = KvLayout((LayerGroup(2, 3, 5), LayerGroup(1, 1, 4)), page_size=page_size, dtype="bfloat16")
    kv = PagedKv(layout, 24)
    for layer in range(3):
        kv.layer(layer).copy_(torch.randn(kv.layer(layer).shape))
    before = [kv.layer(layer).transpose(1, 2).flatten(0, 1).clone() for layer in range(3)]  # slot by slot
    sources, targets = [5, 7, 8, 20, 9, 9], [7, 8, 5, 6, 0, 0]
    kv.move_tokens(group, torch.tensor(sources), torch.tensor(targets))
    kv.move_tokens(group, *torch.empty(2, 0, dtype=torch.int64))
    for layer in range(3):
        found, expected = kv.layer(layer).transpose(1, 2).flatten(0, 1), before[layer].clone()
        if layer in layers:
            expected[targets] = before[layer][sources]
        assert torch.equal(found, expected)


def test_layers_of_another_group_have_their_own_shape_in_the_same_memory() -> None:
    layout = KvLayout((LayerGroup(2, 3, 5), LayerGroup(1, 1, 4)), page_size=3, dtype="bfloat16")
    kv = PagedKv(layout, 5)
    assert [kv.layer(layer).shape for layer in range(3)] == [(5, 2, 3, 3, 5), (5, 2, 3, 3, 5), (5, 2, 3, 1, 4)]
    for layer in range(3):
        kv.layer(layer).copy_(torch.randn(kv.layer(layer).shape))
    before = [kv.layer(layer).clone() for layer in range(3)]
    for layer in range(3):
        view = bytes(kv.page_bytes_view(layer, 2, 2))
        assert view == before[layer][2:4].view(torch.uint8).numpy().tobytes()
        assert view == kv.device_bytes[layout.span(5, layer, 2, 2)].numpy().tobytes()

    kv.copy_pages(torch.tensor([1, 4]), torch.tensor([2, 3]))
    assert all(torch.equal(kv.layer(layer), before[layer][[0, 1, 1, 4, 4]]) for layer in range(3))

    rows = kv.token_rows(torch.tensor([4, 14]))
    k, v = torch.ones(2, 4, dtype=torch.bfloat16), torch.full((2, 4), 2, dtype=torch.bfloat16)
    kv.write(2, rows, k, v)
    assert kv.layer(2)[1, :, 1, 0].tolist() == kv.layer(2)[4, :, 2, 0].tolist() == [[1] * 4, [2] * 4]
    assert all(torch.equal(kv.layer(layer), before[layer][[0, 1, 1, 4, 4]]) for layer in range(2))


def test_write_writes_its_slots_only() -> None:
    kv = PagedKv(KvLayout.uniform(1, 2, 3, 4, "float32"), 5)
    k, v = torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    kv.write(0, kv.token_rows(torch.tensor([6, 19, 4])), k.flatten(1), v.flatten(1))
    layer = kv.layer(0)
    assert torch.equal(layer[1, 0, 2], k[0]) and torch.equal(layer[4, 1, 3], v[1]) and torch.equal(layer[1, 0, 0], k[2])
    assert int((layer != 0).any(dim=(-1, -2)).sum()) == 6
