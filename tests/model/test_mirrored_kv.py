"""A device pool and its host twin, on a CPU: nothing passes between them but by staging."""

import pytest
import torch
from torch import Tensor

from model.mirrored_kv import MirroredKv
from protocol.kv_layout import KvLayout, LayerGroup

LAYOUT = KvLayout.uniform(2, 1, 4, 4, "bfloat16")
TWO_GROUPS = KvLayout((LayerGroup(1, 1, 3), LayerGroup(2, 2, 4)), 1, "bfloat16")  # words of 4 bytes, then of 8


def pages(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_stage_out_copies_the_pages_of_one_layer() -> None:
    kv = MirroredKv(LAYOUT, 8, "cpu")
    for layer in range(2):
        kv.layer(layer).copy_(torch.randn(kv.layer(layer).shape))
    kv.stage_out(1, pages(3, 4, 6))
    for page in range(8):
        same = kv.layer(1)[page].contiguous().view(torch.uint8).numpy().tobytes()
        assert (bytes(kv.page_bytes_view(1, page, 1)) == same) == (page in (3, 4, 6))
        assert not any(kv.page_bytes_view(0, page, 1))


def test_stage_in_copies_the_pages_of_every_layer() -> None:
    kv = MirroredKv(LAYOUT, 8, "cpu")
    for layer in range(2):
        kv.page_bytes_view(layer, 2, 2)[:] = bytes(range(1, 65)) * (2 * LAYOUT.layer(0).page_bytes // 64)
    assert not kv.layer(0).any()
    kv.stage_in(pages(3))
    for layer in range(2):
        assert kv.layer(layer)[3].any()
        assert not kv.layer(layer)[2].any()


@pytest.mark.parametrize(
    "layout", [LAYOUT, KvLayout.uniform(3, 1, 2, 1, "float32"), KvLayout.uniform(2, 1, 1, 1, "bfloat16"), TWO_GROUPS]
)
def test_a_device_is_called_once_a_layer_out_and_once_a_group_in(layout: KvLayout) -> None:
    """A prompt of 512 pages that lie anywhere: a call for each run of pages would hold up decoding for milliseconds."""
    calls: list[tuple[int, int]] = []

    def copy(source_LPW: Tensor, target_LPW: Tensor, pages_N: Tensor, to_N: Tensor) -> None:
        assert to_N is pages_N
        calls.append((source_LPW.shape[0], len(pages_N)))
        for page in pages_N.tolist():
            target_LPW[:, page] = source_LPW[:, page]

    kv = MirroredKv(layout, 1025, "cpu", copy)
    scattered = (torch.randperm(1024, generator=torch.Generator().manual_seed(0)) + 1)[:512]
    for layer in range(layout.num_layers):
        kv.layer(layer).copy_(torch.randn(kv.layer(layer).shape))
        kv.stage_out(layer, scattered)
    assert calls == [(1, 512)] * layout.num_layers
    before = [kv.layer(layer)[scattered].clone() for layer in range(layout.num_layers)]
    kv.device_bytes.zero_()
    calls.clear()
    kv.stage_in(scattered)
    assert calls == [(group.num_layers, 512) for group in layout.groups]
    for layer in range(layout.num_layers):
        assert torch.equal(kv.layer(layer)[scattered], before[layer])
