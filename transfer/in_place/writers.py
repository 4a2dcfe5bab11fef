r"""Which prefill workers may write into decode's pages, and which reservations may still be written.

    offer -> (the seat is taken) -> admitted -> began -> ended: delivered, or the writer reports that it stopped
                                                     \-> its seat is free: the writer released it or its process ended

Decode shares memory and offers a seat in it with each greeting; prefill takes the seat to write. A free seat proves
that its holder writes no more. A process whose device writes has let go only when it is no longer ending: the kernel
takes the device from it last. Silence proves nothing. Pages of a reservation that may be written must not be used
again.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import WireError
from runtime.shared_memory import SharedMemory, host_identity, is_ending, is_taken, open_shared, take_seat
from transfer.interfaces import Seated
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

    def new_seat(self) -> int:
        """See Seated."""
        return self._memory.new_seat()


class PoolOwner:
    """Lends its memory, also that of its `device`, with one seat a greeting."""

    def __init__(self, memory: Seated, device: DeviceHandle | None = None) -> None:
        self._memory = memory
        self._device = device

    def offer(self) -> PoolOffer:
        """Offers a seat that was never offered before."""
        return PoolOffer(
            host=host_identity(),
            pid=os.getpid(),
            fd=self._memory.shared_fd,
            num_pages=self._memory.num_pages,
            seat=self._memory.new_seat(),
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


@dataclass(frozen=True)
class _Writer:
    """The possible writer of a reservation. `process` is that of a device's writer, else 0."""

    instance: int
    seat: int
    process: int


class Writers:
    """The writers of one decode worker."""

    def __init__(
        self, seats: PoolOwner | None = None, required: str = "", is_ending: Callable[[int], bool] = is_ending
    ) -> None:
        """Without `seats` no worker may write. `required`: the backend by which KV must come in place, if any."""
        self._seats = seats
        self._required = required
        self._is_ending = is_ending
        self._offers: dict[int, PoolOffer] = {}  # of the last greeting, by prefill instance
        self._processes: dict[int, int] = {}  # process ids of those whose device writes, by prefill instance
        self._writing: dict[int, _Writer] = {}  # by reservation

    @property
    def lends(self) -> bool:
        """Whether a peer may be admitted."""
        return self._seats is not None

    def offer(self, instance: int) -> PoolOffer:
        """The offer for the greeting of a prefill worker, if `lends`. Its earlier offer is void."""
        assert self._seats is not None, "this worker lends no memory"
        self.lose(instance)
        self._offers[instance] = offer = self._seats.offer()
        return offer

    def lose(self, instance: int) -> None:
        """A prefill worker is lost or starts anew. It gets no more pages; those it was told still count as writable."""
        self._offers.pop(instance, None)
        self._processes.pop(instance, None)

    def admit(self, instance: int, in_place: bool, device_writer: int = 0) -> str:
        """The backend by which a prefill worker writes that reports it can (`in_place`) and holds its seat. Else "", or
        WireError if required. `device_writer`: the process whose device writes, or 0."""
        offer = self._offers.get(instance)
        by_device = bool(device_writer) and offer is not None and offer.device is not None
        if in_place and offer is not None and self._is_taken(offer.seat):
            if by_device:
                self._processes[instance] = device_writer
            if by_device or self._required != "cuda_ipc":
                return "cuda_ipc" if self.is_on_device(instance) else "shm"
        if self._required:
            raise WireError(f"transfer_backend is {self._required}, but prefill has not mapped the KV memory of decode")
        return ""

    def is_on_device(self, instance: int) -> bool:
        """Whether an admitted prefill worker writes by a device into device memory."""
        return instance in self._processes

    def began(self, reservation: int, instance: int) -> None:
        """An admitted prefill worker is told the reservation's pages."""
        writer = _Writer(instance, self._offers[instance].seat, self._processes.get(instance, 0))
        self._writing[reservation] = writer

    def ended(self, reservation: int, instance: int) -> None:
        """That worker has written everything, or reports that it stopped."""
        writer = self._writing.get(reservation)
        if writer is not None and writer.instance == instance:
            del self._writing[reservation]

    def may_be_written(self, reservation: int) -> bool:
        """Whether the pages may still be written. Once False it stays False."""
        writer = self._writing.get(reservation)
        if writer is not None and not self._is_there(writer):
            del self._writing[reservation]
        return reservation in self._writing

    def _is_there(self, writer: _Writer) -> bool:
        """Looks at the seat first: the kernel frees it before the process has ended, and the device after that."""
        return self._is_taken(writer.seat) or (writer.process > 0 and self._is_ending(writer.process))

    def _is_taken(self, seat: int) -> bool:
        return self._seats is not None and self._seats.is_taken(seat)
