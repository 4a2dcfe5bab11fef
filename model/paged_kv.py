"""The KV memory of one worker: one allocation, with pages by number. Page 0 is padding; anyone may read or write it.

Each group of layers has its own part of the allocation.

The memory is zeroed at creation. So it is really allocated, and a slot never written holds finite numbers.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.kv_layout import KvLayout
from runtime.shared_memory import SharedMemory

# By the name in a KvLayout or config.
TORCH_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PagedKv:
    """For each group of layers (num_layers, num_pages, 2, page_size, num_kv_heads, head_dim). A page of one layer is
    contiguous."""

    def __init__(self, layout: KvLayout, num_pages: int, device: torch.device | str = "cpu") -> None:
        """`num_pages` includes the padding page 0.

        `device_bytes` are all bytes that the model reads and writes, uint8; `layout.span()` tells where a layer lies.
        """
        assert num_pages >= 2, num_pages
        self.layout = layout
        self.num_pages = num_pages
        self.device = torch.device(device)
        num_bytes = layout.pool_bytes(num_pages)

        self._bytes: memoryview | None = None
        self._shared: SharedMemory | None = None
        if self.device.type == "cpu":
            # A mapping gives tensor and memoryview over the same bytes, whatever the dtype; another process may map it.
            self._shared = SharedMemory(num_bytes)
            self._bytes = memoryview(self._shared.mapping)
            self.device_bytes = torch.frombuffer(self._shared.mapping, dtype=torch.uint8).zero_()
        else:
            self.device_bytes = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)

        self._dtype = TORCH_DTYPES[layout.dtype]
        self._groups = tuple(self._group(index, span) for index, span in enumerate(layout.group_spans(num_pages)))
        self._layers = tuple(layer for group in self._groups for layer in group.unbind(0))
        self._rows = tuple(layer.view(-1, layer.shape[-2] * layer.shape[-1]) for layer in self._layers)

    def _group(self, index: int, span: slice) -> Tensor:
        layer = self.layout.group_layouts[index]
        shape = (-1, self.num_pages, 2, layer.page_size, layer.num_kv_heads, layer.head_dim)
        return self.device_bytes[span].view(self._dtype).view(shape)

    def layer(self, layer: int) -> Tensor:
        """(num_pages, 2, page_size, num_kv_heads, head_dim) of one layer: [:, 0] is K, [:, 1] is V."""
        return self._layers[layer]

    def token_rows(self, slots_T: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of K and of V of the tokens at `slots_T`, for `write`. They are the same in every layer."""
        k_rows_T = slots_T + slots_T // self.layout.page_size * self.layout.page_size
        return k_rows_T, k_rows_T + self.layout.page_size

    def write(self, layer: int, rows: tuple[Tensor, Tensor], k_TN: Tensor, v_TN: Tensor) -> None:
        """Writes each token's K and V, (T, num_kv_heads * head_dim), in the dtype of the pages."""
        for rows_T, values_TN in zip(rows, (k_TN, v_TN), strict=True):
            self._rows[layer].index_copy_(0, rows_T, values_TN.to(self._dtype))

    def copy_pages(self, src_N: Tensor, dst_N: Tensor) -> None:
        """Copies page src_N[i] to page dst_N[i] in every layer, on the device. No page may be in both."""
        for group in self._groups:
            group.index_copy_(1, dst_N, group.index_select(1, src_N))

    def move_tokens(self, group: int, from_N: Tensor, to_N: Tensor) -> None:
        """Copies K and V of the token at slot from_N[i] to slot to_N[i] in every layer of the group, on the device.

        All are read before any is written, so a slot may be in both. Slots of page 0 may come more than once in `to_N`,
        others once.
        """
        layers = self._groups[group]
        rows_LRW = layers.view(layers.shape[0], -1, layers.shape[-2] * layers.shape[-1])
        from_2N, to_2N = (torch.cat(self.token_rows(slots_N)) for slots_N in (from_N, to_N))
        rows_LRW.index_copy_(1, to_2N, rows_LRW.index_select(1, from_2N))

    def to_stage(self, pages: Sequence[int]) -> Sequence[int]:
        """Those of `pages` that must be copied between the device and host memory, because a transport reads or writes
        them there: none, without a twin."""
        del pages
        return ()

    def stage_out(self, layer: int, pages_N: Tensor) -> None:
        """Copies pages of one layer to host memory, on the current stream; here there is nothing to copy. `pages_N` is
        int64 on the device."""

    def stage_in(self, pages_N: Tensor) -> None:
        """Copies pages of every layer from host memory to the device; here there is nothing to copy."""

    @property
    def shared_fd(self) -> int:
        """A descriptor of the memory behind page_bytes_view, for other processes to map. CPU only."""
        assert self._shared is not None, "shared_fd needs KV in host memory"
        return self._shared.fd

    def new_seat(self) -> int:
        """A seat in that memory that was never offered before. CPU only."""
        assert self._shared is not None, "new_seat needs KV in host memory"
        return self._shared.new_seat()

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        """Writable bytes of pages [page_start, page_start + num_pages) of one layer, without a copy. CPU only."""
        assert self._bytes is not None, "page_bytes_view needs KV in host memory"
        return self._bytes[self.layout.span(self.num_pages, layer, page_start, num_pages)]

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """Writable bytes of one layer from page 0 to the last of `pages`, without a copy. CPU only."""
        return self.page_bytes_view(layer, 0, int(pages.max()) + 1)
