"""Pages of KV in host pages, and back in other pages."""

import pytest
import torch

from model.host_copies import HostCopies
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from protocol.kv_layout import KvLayout, LayerGroup

LAYOUTS = [
    KvLayout.uniform(2, 1, 4, 4, "bfloat16"),
    KvLayout.uniform(3, 1, 1, 1, "bfloat16"),
    KvLayout((LayerGroup(1, 1, 3), LayerGroup(2, 2, 4)), 1, "bfloat16"),
]


@pytest.mark.parametrize("memory", [PagedKv, MirroredKv])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_come_back_in_other_pages_and_no_others_change(layout: KvLayout, memory: type[PagedKv]) -> None:
    kv = memory(layout, 12, "cpu")
    kv.device_bytes.random_(1, 255)
    before = [kv.layer(layer).clone().view(torch.int16) for layer in range(layout.num_layers)]
    host = HostCopies(kv, 6)
    host.spill(torch.tensor([3, 9, 4]), torch.tensor([5, 1, 2]))
    kv.device_bytes.zero_()
    host.fill(torch.tensor([1, 5]), torch.tensor([7, 11]))
    for layer in range(layout.num_layers):
        pages = kv.layer(layer).view(torch.int16)
        assert torch.equal(pages[7], before[layer][9]) and torch.equal(pages[11], before[layer][3])
        assert not pages[[0, 1, 2, 3, 4, 5, 6, 8, 9, 10]].any()
