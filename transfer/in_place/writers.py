r"""Who may write into decode's pages in place, and which reservations somebody may still be writing.

    offer -> (the seat is taken) -> admitted -> began -> ended: delivered, or the writer has said that it stopped
                                                     \-> its seat is free: it has let go, or its process is gone

A process that has a device write is gone when it is not ending any more, either: the device is taken from it last.
Silence proves nothing. Pages of a reservation that may be written are not to be used again. What it does not know:
pages, frames, messages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from protocol.errors import WireError
from protocol.messages_handoff import PoolOffer
from runtime.ending import is_ending


class Seats(Protocol):
    """Memory that is lent; see backends.shm.PoolOwner."""

    def offer(self) -> PoolOffer:
        """A seat that nobody was offered before."""
        ...

    def is_taken(self, seat: int) -> bool:
        """Whether somebody holds the seat, and may write."""
        ...


@dataclass(frozen=True)
class _Writer:
    """Who may be writing a reservation. `process` is that of a device's writer, else 0."""

    instance: int
    seat: int
    process: int


class Writers:
    """Of one decode worker. `required`: KV comes in place, by `backend`, or not at all."""

    def __init__(
        self, seats: Seats, required: bool, backend: str = "shm", is_ending: Callable[[int], bool] = is_ending
    ) -> None:
        self._seats = seats
        self._required = required
        self._backend = backend
        self._is_ending = is_ending
        self._offers: dict[int, PoolOffer] = {}  # in the last greeting, by prefill instance
        self._processes: dict[int, int] = {}  # of those that have a device write, by prefill instance
        self._writing: dict[int, _Writer] = {}  # by reservation

    def __len__(self) -> int:
        return len(self._writing)

    def offer(self, instance: int) -> PoolOffer:
        """For the greeting of a prefill worker; what it was offered before is void."""
        self.lose(instance)
        self._offers[instance] = offer = self._seats.offer()
        return offer

    def lose(self, instance: int) -> None:
        """A prefill worker is lost, or begins anew: it may be told no more pages. What it was told of counts on."""
        self._offers.pop(instance, None)
        self._processes.pop(instance, None)

    def admit(self, instance: int, in_place: bool, device_writer: int = 0) -> int:
        """The seat of a prefill worker that says that it may write (`in_place`), and may; else 0, or a WireError.
        `device_writer`: the process that has a device write, if one does."""
        offer = self._offers.get(instance)
        by_device = bool(device_writer) and offer is not None and offer.device is not None
        if in_place and offer is not None and self._seats.is_taken(offer.seat):
            if by_device:
                self._processes[instance] = device_writer
            if by_device or not (self._required and self._backend == "cuda_ipc"):
                return offer.seat
        if self._required:
            raise WireError(f"transfer_backend is {self._backend}, but prefill has not mapped the KV memory of decode")
        return 0

    def is_on_device(self, instance: int) -> bool:
        """Whether an admitted prefill worker has a device write, and not into host memory."""
        return instance in self._processes

    def backend_of(self, instance: int) -> str:
        """How an admitted prefill worker writes."""
        return "cuda_ipc" if self.is_on_device(instance) else "shm"

    def began(self, reservation: int, instance: int) -> None:
        """An admitted prefill worker is told the reservation's pages."""
        writer = _Writer(instance, self._offers[instance].seat, self._processes.get(instance, 0))
        self._writing[reservation] = writer

    def ended(self, reservation: int, instance: int) -> None:
        """That worker has written all, or says that it writes no more."""
        writer = self._writing.get(reservation)
        if writer is not None and writer.instance == instance:
            del self._writing[reservation]

    def may_be_written(self, reservation: int) -> bool:
        """Whether somebody may still write there. Once false it stays false."""
        writer = self._writing.get(reservation)
        if writer is not None and not self._is_there(writer):
            del self._writing[reservation]
        return reservation in self._writing

    def _is_there(self, writer: _Writer) -> bool:
        """The seat first: it is let go before the process is over, and the device after that."""
        return self._seats.is_taken(writer.seat) or (writer.process > 0 and self._is_ending(writer.process))
