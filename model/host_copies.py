"""Host memory for the KV of preempted choices: each host page holds one page of KV, in every layer. Page 0 is padding.

    spill    pages of the device -> host pages
    fill     host pages -> pages of the device

Each is one call to the device for each group of layers. The caller chooses the stream. On a GPU the memory is pinned.
"""

from torch import Tensor

from model.mirrored_kv import copy_of, words_of
from model.paged_kv import PagedKv
from model.pinned_memory import pin


class HostCopies:
    """`num_host_pages` counts page 0. On a CPU the host pages are a second memory."""

    def __init__(self, kv: PagedKv, num_host_pages: int) -> None:
        self.memory = PagedKv(kv.layout, num_host_pages, "cpu")
        pin(self.memory, kv.device, "retract-host-gib")
        self._copy = copy_of(kv.device)
        self._pairs = tuple(zip(words_of(kv), words_of(self.memory), strict=True))

    def spill(self, pages_N: Tensor, host_pages_N: Tensor) -> None:
        """Copies page pages_N[i] to host page host_pages_N[i], in every layer. Both are int64 on the device."""
        for device_LPW, host_LPW in self._pairs:
            self._copy(device_LPW, host_LPW, pages_N, host_pages_N)

    def fill(self, host_pages_N: Tensor, pages_N: Tensor) -> None:
        """Copies host page host_pages_N[i] to page pages_N[i], in every layer."""
        for device_LPW, host_LPW in self._pairs:
            self._copy(host_LPW, device_LPW, host_pages_N, pages_N)
