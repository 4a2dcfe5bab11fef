"""Seats in memory that a decode worker shares: decode offers one with each greeting, and prefill takes it to write.

A free seat proves that its holder writes no more: it has released the seat or its process has ended.
"""

import os

from protocol.errors import WireError
from runtime.shared_memory import SharedMemory, host_identity, is_taken, open_shared, take_seat
from transfer.memory import Seated
from transfer.offers import DeviceHandle, PoolOffer

SEATS_BYTES = 4096  # size of a file that holds only seats; they are locks and use none of it


class SeatFile:
    """Seats without pages, for a decode worker that has no KV in host memory."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._memory = SharedMemory(SEATS_BYTES)

    @property
    def shared_fd(self) -> int:
        """The file."""
        return self._memory.fd


class PoolOwner:
    """See writers.Seats. The decode side: lends its memory, also that of its `device`, with one seat a greeting."""

    def __init__(self, memory: Seated, device: DeviceHandle | None = None) -> None:
        self._memory = memory
        self._device = device
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
            device=self._device,
        )

    def is_taken(self, seat: int) -> bool:
        """Whether a process holds the seat and may write."""
        return is_taken(self._memory.shared_fd, seat)


def hold_seat(offer: PoolOffer, num_bytes: int | None = None) -> int:
    """The prefill side: a descriptor of decode's shared memory, which holds the offered seat until it is closed.
    WireError names why there is none, also if the memory has another size than `num_bytes`."""
    if offer.host != host_identity():
        raise WireError("decode's memory is on another host, or in another container")
    try:
        fd = open_shared(offer.pid, offer.fd, num_bytes)
    except OSError as error:
        raise WireError(f"decode's shared memory cannot be opened: {error}") from error
    try:
        take_seat(fd, offer.seat)
    except OSError as error:
        os.close(fd)
        raise WireError(f"decode's seat cannot be taken: {error}") from error
    return fd
