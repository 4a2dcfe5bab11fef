"""The copies that an executor is given, and which of them are not over yet."""

from collections.abc import Callable, Sequence

from scheduler.plan import CopyPages, Operation, StageIn
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.kv_pages import prompt_copies
from scheduler.planning.req import Req


class KvCopies:
    """`submit` hands an operation to the executor. `has_twin`: its memory has a twin on the host."""

    def __init__(self, kv_manager: KvManager, submit: Callable[[Operation], None], has_twin: bool = False) -> None:
        self._kv_manager = kv_manager
        self._submit = submit
        self._has_twin = has_twin
        self._in_flight: set[int] = set()  # tickets

    def __len__(self) -> int:
        return len(self._in_flight)

    def submit(self, made: Callable[[int], Operation]) -> int:
        """Submits the copy that `made` gives for a new ticket. Returns the ticket."""
        ticket = self._kv_manager.next_ticket()
        self._in_flight.add(ticket)
        self._submit(made(ticket))
        return ticket

    def fork(self, first: Req, others: Sequence[Req], in_twin: Sequence[int] = ()) -> int:
        """Gives each of `others` its own copy of the prompt pages of `first` that they do not share.

        `in_twin` are pages whose KV is in host memory; they are copied to the device before. Returns the ticket that
        must be over before these choices decode; 0 if they may decode in the next launch.
        """
        page_size, lookahead = self._kv_manager.page_size, self._kv_manager.lookahead
        pages_of_others = [req.held.pages for req in others]
        sources, targets = prompt_copies(first.held.pages, pages_of_others, first.prompt_len, page_size, lookahead)
        if in_twin and self._has_twin:
            return self.submit(lambda ticket: StageIn(ticket, tuple(in_twin), tuple(sources), tuple(targets)))
        if sources:
            self.submit(lambda ticket: CopyPages(ticket, tuple(sources), tuple(targets)))
        return 0

    def done(self, ticket: int) -> None:
        """The executor reports the end of a copy."""
        self._in_flight.discard(ticket)

    def is_over(self, ticket: int) -> bool:
        """Whether the copy with this ticket is over."""
        return ticket not in self._in_flight

    @property
    def oldest(self) -> int:
        """The ticket of the oldest copy in flight; that of the next operation if there is none."""
        return min(self._in_flight, default=self._kv_manager.newest_ticket + 1)
