"""KV written in place: a prefill worker on the same host maps decode's KV memory and writes the pages itself.

    decode   offers its process id, the descriptor of its memory, and a new seat for each greeting
    prefill  opens the descriptor, takes the seat, maps the memory
    decode   sees the seat taken, which proves that the memory is the same; from now on jobs carry page numbers

Headers and the last frame still travel; decode checks the sum of what is in the pages.
"""

import mmap
import os

import numpy as np
import numpy.typing as npt

from protocol.errors import WireError
from protocol.kv_layout import KvLayout
from transfer.in_place.seats import hold_seat
from transfer.offers import PoolOffer


class MappedPool:
    """See pools.MappedMemory. Holds the seat until close()."""

    def __init__(self, layout: KvLayout, offer: PoolOffer) -> None:
        """Takes the offered seat, then maps the memory. WireError names why it cannot."""
        self.layout = layout
        self.num_pages = offer.num_pages
        num_bytes = layout.pool_bytes(offer.num_pages)
        self._fd = hold_seat(offer, num_bytes)
        try:
            self._mapping = mmap.mmap(self._fd, num_bytes)
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise WireError(f"decode's KV memory cannot be mapped: {error}") from error
        self._bytes = memoryview(self._mapping)

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """See PageMemory. A view must not outlive close()."""
        return self._bytes[self.layout.span(self.num_pages, layer, 0, int(pages.max()) + 1)]

    def close(self) -> None:
        """See MappedMemory."""
        self._bytes.release()
        self._mapping.close()
        os.close(self._fd)
