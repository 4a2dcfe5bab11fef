"""KV on a device with a twin in pinned host memory, for transports that read and write host memory only.

    prefill   forward writes a layer -> stage_out (device to host) -> the sender reads the twin
    decode    the receiver writes the twin -> stage_in (host to device) -> decoded

Page p of the device is page p of the twin. Each call is one call to the device for all its pages and all layers of a
group. The caller chooses the stream; its events tell when the host may read. The twin takes as much memory as the
pool on the device.
"""

from collections.abc import Callable, Sequence
from math import gcd
from typing import Final

import torch
from torch import Tensor

from model.paged_kv import PagedKv
from model.pinned_memory import pin
from protocol.kv_layout import KvLayout

WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16}  # by bytes

# source (L, P, W), target (L, Q, W), page numbers of the source (N,), of the target (N,)
CopyPages = Callable[[Tensor, Tensor, Tensor, Tensor], None]


class MirroredKv(PagedKv):
    """A PagedKv whose `page_bytes_view` shows its host twin. On a CPU (in tests) the twin is a second memory."""

    def __init__(
        self, layout: KvLayout, num_pages: int, device: torch.device | str, copy: CopyPages | None = None
    ) -> None:
        """`copy` moves pages between the two. By default it is a kernel on a GPU; tests pass another."""
        super().__init__(layout, num_pages, device)
        self._host = PagedKv(layout, num_pages, "cpu")
        self._copy = copy or copy_of(self.device)
        pin(self._host, self.device, "max-total-tokens")
        self._pairs = tuple(zip(words_of(self), words_of(self._host), strict=True))

    @property
    def shared_fd(self) -> int:
        """The twin's descriptor."""
        return self._host.shared_fd

    def new_seat(self) -> int:
        """A seat in the twin."""
        return self._host.new_seat()

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        """Bytes of the twin."""
        return self._host.page_bytes_view(layer, page_start, num_pages)

    def to_stage(self, pages: Sequence[int]) -> Sequence[int]:
        """All `pages`: a transport reads and writes the twin."""
        return pages

    def stage_out(self, layer: int, pages_N: Tensor) -> None:
        """Copies pages of one layer from the device to the twin."""
        group, index = self.layout.place(layer)
        device_LPW, host_LPW = self._pairs[group]
        self._copy(device_LPW[index : index + 1], host_LPW[index : index + 1], pages_N, pages_N)

    def stage_in(self, pages_N: Tensor) -> None:
        """Copies pages of every layer from the twin to the device."""
        for device_LPW, host_LPW in self._pairs:
            self._copy(host_LPW, device_LPW, pages_N, pages_N)


def words_of(kv: PagedKv) -> list[Tensor]:
    """All pages of each group as (num_layers, num_pages, words), in the longest words that divide a page."""
    words = []
    for span, layer in zip(kv.layout.group_spans(kv.num_pages), kv.layout.group_layouts, strict=True):
        word = WORDS[gcd(layer.page_bytes, max(WORDS))]
        words.append(kv.device_bytes[span].view(-1, kv.num_pages, layer.page_bytes).view(word))
    return words


def copy_of(device: torch.device) -> CopyPages:
    """What copies pages between a device and host memory."""
    if device.type != "cuda":
        return _copy_on_host
    from model.page_copies_triton import copy_pages  # noqa: PLC0415 - an optional package, for GPUs

    return copy_pages


def _copy_on_host(source_LPW: Tensor, target_LPW: Tensor, from_N: Tensor, to_N: Tensor) -> None:
    target_LPW.index_copy_(1, to_N, source_LPW.index_select(1, from_N))
