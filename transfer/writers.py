r"""Who may write into decode's pages in place, and which reservations somebody may still be writing.

    offer -> (the seat is taken) -> admitted -> began -> ended: delivered, or the writer has said that it stopped
                                                     \-> its seat is free: it has let go, or its process is gone

Silence proves nothing. Pages of a reservation that may be written are not to be used again. What it does not know:
pages, frames, messages.
"""

from typing import Protocol

from protocol.errors import WireError
from protocol.messages_handoff import PoolOffer


class Seats(Protocol):
    """Memory that is lent; see backend_shm.PoolOwner."""

    def offer(self) -> PoolOffer:
        """A seat that nobody was offered before."""
        ...

    def is_taken(self, seat: int) -> bool:
        """Whether somebody holds the seat, and may write."""
        ...


class Writers:
    """Of one decode worker. `required`: KV comes in place or not at all. `backend` names how it is written."""

    def __init__(self, seats: Seats, required: bool, backend: str = "shm") -> None:
        self.backend = backend
        self._seats = seats
        self._required = required
        self._seat_of: dict[int, int] = {}  # of the last greeting, by prefill instance
        self._writing: dict[int, tuple[int, int]] = {}  # reservation: (prefill instance, seat)

    def __len__(self) -> int:
        return len(self._writing)

    def offer(self, instance: int) -> PoolOffer:
        """For the greeting of a prefill worker; what it was offered before is void."""
        offer = self._seats.offer()
        self._seat_of[instance] = offer.seat
        return offer

    def admit(self, instance: int, in_place: bool) -> int:
        """The seat of a prefill worker that says that it may write (`in_place`), and may; else 0, or a WireError."""
        seat = self._seat_of.get(instance, 0)
        if in_place and seat and self._seats.is_taken(seat):
            return seat
        if self._required:
            raise WireError(f"transfer_backend is {self.backend}, but prefill has not mapped the KV memory of decode")
        return 0

    def began(self, reservation: int, instance: int) -> None:
        """An admitted prefill worker is told the reservation's pages."""
        self._writing[reservation] = instance, self._seat_of[instance]

    def ended(self, reservation: int, instance: int) -> None:
        """That worker has written all, or says that it writes no more."""
        if self._writing.get(reservation, (None, 0))[0] == instance:
            del self._writing[reservation]

    def may_be_written(self, reservation: int) -> bool:
        """Whether somebody may still write there. Once false it stays false."""
        entry = self._writing.get(reservation)
        if entry is not None and not self._seats.is_taken(entry[1]):
            del self._writing[reservation]
        return reservation in self._writing
