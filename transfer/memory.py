"""KV memory as transfer/ uses it: pages of each layer, by number."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from protocol.kv_layout import KvLayout


class PageMemory(Protocol):
    """KV pages in host memory, by number."""

    @property
    def layout(self) -> KvLayout:
        """Its layout."""
        ...

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """Writable bytes of one layer from page 0 to the last of `pages`, without a copy. Touch no other pages."""
        ...


class Seated(Protocol):
    """Memory in which other processes take seats."""

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""
        ...

    @property
    def shared_fd(self) -> int:
        """Its descriptor."""
        ...


class SharedPages(Seated, PageMemory, Protocol):
    """KV pages that other processes may map. The shared memory holds only these pages, layer after layer."""

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        """Writable bytes of pages [page_start, page_start + num_pages) of one layer, contiguous, without a copy."""
        ...
