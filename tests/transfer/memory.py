"""KV pages that another process may map, and what a pool must look like after a transfer, byte for byte."""

import random
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.kv_layout import KvLayout, LayerGroup
from runtime.shared_memory import SharedMemory
from transfer.interfaces import Pollable

LAYOUT = KvLayout.uniform(num_layers=3, num_kv_heads=2, head_dim=4, page_size=4, dtype="float32")

LARGE = KvLayout.uniform(num_layers=2, num_kv_heads=4, head_dim=64, page_size=64, dtype="float32")  # 128 KiB a page
TWO_GROUPS = KvLayout((LayerGroup(2, 4, 64), LayerGroup(1, 2, 32)), page_size=4, dtype="float32")
# Words of 2 bytes, then of 8.
ODD_GROUPS = KvLayout((LayerGroup(1, 3, 3), LayerGroup(2, 2, 4)), page_size=3, dtype="bfloat16")


class HostMemory:
    """A PageMemory of random bytes, so that any byte written by mistake shows."""

    def __init__(self, layout: KvLayout, num_pages: int, seed: int) -> None:
        self.layout = layout
        self.num_pages = num_pages
        num_bytes = layout.pool_bytes(num_pages)
        self._memory = SharedMemory(num_bytes)
        self.pool = memoryview(self._memory.mapping)
        self.pool[:] = random.Random(seed).randbytes(num_bytes)

    @property
    def device_bytes(self) -> Tensor:
        """The same bytes, as if a device had them."""
        return torch.frombuffer(self._memory.mapping, dtype=torch.uint8)

    @property
    def shared_fd(self) -> int:
        return self._memory.fd

    def new_seat(self) -> int:
        return self._memory.new_seat()

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        return self.pool[self.layout.span(self.num_pages, layer, page_start, num_pages)]

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        return self.page_bytes_view(layer, 0, int(pages.max()) + 1)

    def token(self, layer: int, pages: Sequence[int], position: int, half: int) -> memoryview:
        """K (half 0) or V (half 1) of one token of a prompt that lies in `pages`."""
        page, slot = divmod(position, self.layout.page_size)
        of_layer = self.layout.layer(layer)
        start = half * of_layer.page_bytes // 2 + slot * of_layer.token_bytes
        return self.page_bytes_view(layer, pages[page], 1)[start : start + of_layer.token_bytes]


def expected_pool(
    before: bytes,
    target: HostMemory,
    target_pages: Sequence[int],
    source: HostMemory,
    source_pages: Sequence[int],
    n: int,
    start: int = 0,
) -> bytes:
    """`before`, with K and V of tokens [start, n) of every layer as in `source`, and no other byte changed.
    `target_pages` begin with the token `start`."""
    want = HostMemory(target.layout, target.num_pages, 0)
    want.pool[:] = before
    for layer in range(target.layout.num_layers):
        for position in range(start, n):
            for half in (0, 1):
                sent = source.token(layer, source_pages, position, half)
                want.token(layer, target_pages, position - start, half)[:] = sent
    return bytes(want.pool)


class Queue:
    """Arrivals that a test fills."""

    address = "queue"
    backend = "queue"
    is_ordered = False

    def __init__(self) -> None:
        self.frames: deque[list[bytes]] = deque()

    def receive(self) -> Sequence[memoryview] | None:
        return [memoryview(part) for part in self.frames.popleft()] if self.frames else None

    def pollables(self) -> list[Pollable]:
        return []

    def meet(self, instance: int, export: bytes) -> None:
        """See interfaces.Arrivals."""

    def lose(self, instance: int) -> None:
        """See interfaces.Arrivals."""

    def close(self) -> None:
        self.frames.clear()
