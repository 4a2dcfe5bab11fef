"""Decode workers' memory in which a prefill worker writes KV itself: mapped by the best way that works.

    decode   offers its process id, the descriptor of its memory, and a new seat for each greeting
    prefill  opens the descriptor, takes the seat, maps the memory
    decode   sees the seat taken, which proves that the memory is the same; from now on jobs carry page numbers

Headers and the last frame still travel; decode checks the sum of what is in the pages.
"""

import mmap
import os
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from protocol.errors import WireError
from protocol.kv_layout import KvLayout
from runtime.log import get_log
from transfer.in_place.device_pools import DevicePool
from transfer.in_place.writers import hold_seat
from transfer.interfaces import PageMemory
from transfer.offers import PoolOffer

log = get_log("transfer")


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


class MappedMemory(PageMemory, Protocol):
    """A peer's pages in host memory."""

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""

    def close(self) -> None:
        """Unmaps it, then frees the seat."""


Pool = MappedMemory | DevicePool
Way = Callable[[KvLayout, PoolOffer], Pool]  # maps what a decode worker offers. WireError names why it cannot
ON_DEVICE, IN_PLACE = "KV is not written on the device", "KV is not written in place"  # log lines of the two ways


class Pools:
    """The mapped memory of decode workers, by instance."""

    def __init__(self, ways: Mapping[str, Way] | None = None, required: str = "") -> None:
        """`ways`: the best first, each with the log line for its failure; by default nothing is mapped. `required`: the
        transfer backend that has only one way and needs it."""
        self._ways = ways or {}
        self._required = required
        self._pools: dict[int, Pool] = {}

    def attach(self, instance: int, layout: KvLayout, offer: PoolOffer | None) -> bool:
        """Maps what a decode worker offers. If it cannot: False, or WireError if it is required."""
        self.drop(instance)
        for line, mapped in self._ways.items():
            try:
                if offer is None:
                    raise WireError("decode offers no KV memory to write in")
                self._pools[instance] = mapped(layout, offer)
            except WireError as error:
                if self._required:
                    raise WireError(f"transfer_backend is {self._required}, but {error.message}") from error
                log.info(line, instance=instance, why=error.message)
            else:
                return True
        return False

    def get(self, instance: int) -> Pool | None:
        """The memory of a decode worker, if it is mapped."""
        return self._pools.get(instance)

    def drop(self, instance: int) -> None:
        """Unmaps one worker's memory. Idempotent."""
        if (pool := self._pools.pop(instance, None)) is not None:
            pool.close()

    def close(self) -> None:
        """Unmaps everything. Idempotent."""
        for instance in list(self._pools):
            self.drop(instance)
