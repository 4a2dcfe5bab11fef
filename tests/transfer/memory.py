"""KV pages that another process may map, and what a pool must look like after a transfer, byte for byte."""

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.kv_layout import KvLayout
from runtime.shared_memory import SharedMemory

LAYOUT = KvLayout(num_layers=3, num_kv_heads=2, head_dim=4, page_size=4, dtype="float32")


class HostMemory:
    """A PageMemory of random bytes, so that any byte written by mistake shows."""

    def __init__(self, layout: KvLayout, num_pages: int, seed: int) -> None:
        self.layout = layout
        self.num_pages = num_pages
        num_bytes = layout.num_layers * num_pages * layout.page_bytes
        self._memory = SharedMemory(num_bytes)
        self.pool = memoryview(self._memory.mapping)
        self.pool[:] = random.Random(seed).randbytes(num_bytes)

    @property
    def device_bytes(self) -> Tensor:
        """The same bytes, as if a device had them."""
        return torch.frombuffer(self._memory.mapping, dtype=torch.uint8).view(self.layout.num_layers, -1)

    @property
    def shared_fd(self) -> int:
        return self._memory.fd

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        assert 0 <= layer < self.layout.num_layers
        assert 0 <= page_start <= page_start + num_pages <= self.num_pages
        start = (layer * self.num_pages + page_start) * self.layout.page_bytes
        return self.pool[start : start + num_pages * self.layout.page_bytes]

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        return self.page_bytes_view(layer, 0, int(pages.max()) + 1)

    def token(self, layer: int, pages: Sequence[int], position: int, half: int) -> memoryview:
        """K (half 0) or V (half 1) of one token of a prompt that lies in `pages`."""
        page, slot = divmod(position, self.layout.page_size)
        start = half * self.layout.page_bytes // 2 + slot * self.layout.token_bytes
        return self.page_bytes_view(layer, pages[page], 1)[start : start + self.layout.token_bytes]


def expected_pool(
    before: bytes,
    target: HostMemory,
    target_pages: Sequence[int],
    source: HostMemory,
    source_pages: Sequence[int],
    n: int,
) -> bytes:
    """`before`, with K and V of tokens [0, n) of every layer as in `source`, and no other byte changed."""
    want = HostMemory(target.layout, target.num_pages, 0)
    want.pool[:] = before
    for layer in range(target.layout.num_layers):
        for position in range(n):
            for half in (0, 1):
                want.token(layer, target_pages, position, half)[:] = source.token(layer, source_pages, position, half)
    return bytes(want.pool)
