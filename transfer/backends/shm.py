"""KV written in place: a prefill worker on the same host maps decode's KV memory and writes the pages itself.

    decode   offers its process id, the descriptor of its memory, and a new seat for each greeting
    prefill  opens the descriptor, takes the seat, maps the memory
    decode   sees the seat taken, which proves that the memory is the same; from now on jobs carry page numbers

Headers and the last frame still travel; decode checks the sum of what is in the pages. A free seat proves that its
holder writes no more: it has released the seat or its process has ended.
"""

import mmap
import os

import numpy as np
import numpy.typing as npt

from protocol.errors import WireError
from protocol.kv_layout import KvLayout
from protocol.messages_handoff import PoolOffer
from runtime.log import get_log
from runtime.shared_memory import host_identity, is_taken, open_shared, take_seat
from transfer.memory import Seated

log = get_log("transfer")


class PoolOwner:
    """The decode side: lends its memory, with one seat for each greeting."""

    def __init__(self, memory: Seated) -> None:
        self._memory = memory
        self._num_seats = 0

    def offer(self) -> PoolOffer:
        """Offers a seat that was never offered before."""
        self._num_seats += 1
        return PoolOffer(
            host=host_identity(),
            pid=os.getpid(),
            fd=self._memory.shared_fd,
            num_pages=self._memory.num_pages,
            seat=self._num_seats,
        )

    def is_taken(self, seat: int) -> bool:
        """Whether a process holds the seat and may write."""
        return is_taken(self._memory.shared_fd, seat)


class MappedPool:
    """The prefill side: pages of another process. Holds the seat until close()."""

    def __init__(self, layout: KvLayout, num_pages: int, fd: int) -> None:
        """Owns `fd`, a memory as large as `layout` and `num_pages` require."""
        self.layout = layout
        self.num_pages = num_pages
        self._fd = fd
        self._mapping = mmap.mmap(fd, layout.pool_bytes(num_pages))
        self._bytes = memoryview(self._mapping)

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        """See PageMemory. A view must not outlive close()."""
        return self._bytes[self.layout.span(self.num_pages, layer, page_start, num_pages)]

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """See PageMemory. A view must not outlive close()."""
        return self.page_bytes_view(layer, 0, int(pages.max()) + 1)

    def close(self) -> None:
        """Unmaps the memory, then frees the seat."""
        self._bytes.release()
        self._mapping.close()
        os.close(self._fd)


def map_pool(layout: KvLayout, offer: PoolOffer) -> MappedPool:
    """Takes the offered seat and maps the memory. WireError names why it cannot."""
    if offer.host != host_identity():
        raise WireError("decode's KV memory is on another host, or in another container")
    try:
        fd = open_shared(offer.pid, offer.fd, layout.pool_bytes(offer.num_pages))
    except OSError as error:
        raise WireError(f"decode's KV memory cannot be opened: {error}") from error
    try:
        take_seat(fd, offer.seat)
        return MappedPool(layout, offer.num_pages, fd)
    except (OSError, ValueError) as error:
        os.close(fd)
        raise WireError(f"decode's KV memory cannot be mapped: {error}") from error


class PoolMaps:
    """The mapped memory of decode workers, by instance. `required`: KV must be written in place."""

    def __init__(self, required: bool) -> None:
        self._required = required
        self._pools: dict[int, MappedPool] = {}

    def attach(self, instance: int, layout: KvLayout, offer: PoolOffer | None) -> bool:
        """Maps what a decode worker offers. If it cannot: False, or WireError if it is required."""
        self.drop(instance)
        try:
            if offer is None:
                raise WireError("decode offers no KV memory to write in")
            self._pools[instance] = map_pool(layout, offer)
        except WireError as error:
            if self._required:
                raise WireError(f"transfer_backend is shm, but {error.message}") from error
            log.info("KV is not written in place", instance=instance, why=error.message)
            return False
        return True

    def get(self, instance: int) -> MappedPool | None:
        """The memory of a decode worker, if it is mapped."""
        return self._pools.get(instance)

    def device(self, instance: int) -> None:
        """Always None: no device memory is mapped here."""

    def drop(self, instance: int) -> None:
        """Unmaps one worker's memory. Idempotent."""
        if (pool := self._pools.pop(instance, None)) is not None:
            pool.close()

    def close(self) -> None:
        """Unmaps everything. Idempotent."""
        for instance in list(self._pools):
            self.drop(instance)
