"""The copies that an executor was given and that are not over yet. Launches are Planner.in_flight."""

from collections.abc import Callable

from scheduler.plan import Operation
from scheduler.planning.kv_book import KvBook


class CopyTickets:
    """`submit` hands an operation to the executor."""

    def __init__(self, book: KvBook, submit: Callable[[Operation], None]) -> None:
        self._book = book
        self._submit = submit
        self._in_flight: set[int] = set()

    def __len__(self) -> int:
        return len(self._in_flight)

    def submit(self, made: Callable[[int], Operation]) -> int:
        """Submits the copy that `made` gives for a new ticket. Returns the ticket."""
        ticket = self._book.next_ticket()
        self._in_flight.add(ticket)
        self._submit(made(ticket))
        return ticket

    def done(self, ticket: int) -> None:
        """The executor reports the end of a copy."""
        self._in_flight.discard(ticket)

    def is_over(self, ticket: int) -> bool:
        """Whether the copy with this ticket is over."""
        return ticket not in self._in_flight

    @property
    def oldest(self) -> int:
        """The ticket of the oldest copy in flight; that of the next operation if there is none."""
        return min(self._in_flight, default=self._book.newest_ticket + 1)
