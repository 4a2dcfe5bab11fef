"""KV on a device with a twin in pinned host memory, for transports that read and write host memory only.

    prefill   forward writes a layer -> stage_out (device to host) -> the sender reads the twin
    decode    the receiver writes the twin -> stage_in (host to device) -> decoded

Both copies run on the forward stream, in order with the forwards. What it does not know: when the host may look, which
events say. The twin takes as much host memory as the pool takes on the device.
"""

from collections.abc import Iterator, Sequence

import torch

from model.paged_kv import PagedKv
from protocol.kv_layout import KvLayout


class MirroredKv(PagedKv):
    """A PagedKv whose `page_bytes_view` is its host twin's. On a CPU (in tests) the twin is simply a second memory."""

    def __init__(self, layout: KvLayout, num_pages: int, device: torch.device | str) -> None:
        super().__init__(layout, num_pages, device)
        self._host = PagedKv(layout, num_pages, "cpu")
        if self.device.type == "cuda":
            first = self._host.layer(0)
            status = torch.cuda.cudart().cudaHostRegister(first.data_ptr(), layout.num_layers * first.nbytes, 0)
            if int(status) != 0:
                raise MemoryError(f"cannot pin {layout.num_layers * first.nbytes} bytes of host memory: {status}")

    @property
    def shared_fd(self) -> int:
        """The twin's."""
        return self._host.shared_fd

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        """Bytes of the twin."""
        return self._host.page_bytes_view(layer, page_start, num_pages)

    def stage_out(self, layer: int, pages: Sequence[int]) -> None:
        """On the forward stream: the twin's pages of one layer become the device's."""
        for start, end in page_runs(pages):
            self._host.layer(layer)[start:end].copy_(self.layer(layer)[start:end], non_blocking=True)

    def stage_in(self, pages: Sequence[int]) -> None:
        """On the forward stream: the device's pages become the twin's, in every layer."""
        for layer in range(self.layout.num_layers):
            for start, end in page_runs(pages):
                self.layer(layer)[start:end].copy_(self._host.layer(layer)[start:end], non_blocking=True)


def page_runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """`pages` as runs [start, end) of consecutive numbers, in their order."""
    start = end = -1
    for page in pages:
        if page != end:
            if end > start:
                yield start, end
            start = page
        end = page + 1
    if end > start:
        yield start, end
