"""Choices whose KV is in host memory: those that gave way and wait for room on the device.

    decodes --begin--> copied out --Done--> waits --room--> copied back --Done--> decodes
            slots taken                            row, pages        slots given back

No message leaves the worker meanwhile. What a launch in flight draws for the choice is dropped, and drawn again. A
choice that ends on its way is forgotten here; the book keeps its slots, row and pages until its copy is over.

KV of a draft's last slots may depend on proposals (LayerGroup.lookahead). What the draft needs to write them again is
not kept. So with a draft of J layers the last J - 1 known outputs are drawn once more, and no message repeats them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.plan import Fill, Operation, Spill
from scheduler.planning.kv_book import Holding, KvBook
from scheduler.planning.req import Req

Copy = Callable[[Callable[[int], Operation]], int]  # submits the operation made from a ticket, and returns the ticket


# What a usual machine does in a second: bytes copied to host memory, bytes moved to another worker, operations.
RATES: Final = {"cpu": (5e9, 1e9, 5e10), "cuda": (2e10, 1e10, 2e14)}
RESTART_S: Final = 0.005  # messages, and a place in two more launches


@dataclass(frozen=True)
class Costs:
    """Seconds that a choice which gives way costs, by where it goes."""

    copy_s: float  # a token's KV to host memory, or back
    again_s: float  # a token computed again and, to a decode worker, moved again
    restart_s: float  # to begin again, whatever its length

    @staticmethod
    def on(device: str, token_bytes: float, token_flops: float, *, moves: bool) -> "Costs":
        """By the RATES of a kind of device, for a model's KV and operations of a token. `moves`: at a decode worker."""
        copied, moved, computed = RATES[device]
        return Costs(token_bytes / copied, token_flops / computed + moves * token_bytes / moved, RESTART_S)


def is_cheaper_on_host(num_tokens: int, costs: Costs) -> bool:
    """Whether two copies of `num_tokens` tokens cost no more than to begin again:

    2 * num_tokens * copy_s <= restart_s + num_tokens * again_s
    """
    return 2 * num_tokens * costs.copy_s <= costs.restart_s + num_tokens * costs.again_s


@dataclass(eq=False)
class _Spilled:
    """One of them. It holds slots until its KV is back or it has ended, and a row and pages while it is copied back."""

    req: Req
    flushes: int  # see Holding
    ticket: int  # of its newest copy


class Spills:
    """First come, first served. `copy` submits operations; `costs` None: always to host memory, if there is room."""

    def __init__(self, book: KvBook, copy: Copy, is_over: Callable[[int], bool], costs: Costs | None) -> None:
        self._num_begun = 0
        self._book = book
        self._copy = copy
        self._is_over = is_over
        self._costs = costs
        self._all: list[_Spilled] = []

    @property
    def num_now(self) -> int:
        """Choices on their way to host memory, there, or on their way back."""
        return sum(bool(each.req.slots) for each in self._all)

    @property
    def counters(self) -> dict[str, float]:
        """For WorkerStats."""
        return {"spills": self._num_begun, "spilled_now": self.num_now}

    @property
    def is_waiting(self) -> bool:
        """Whether a choice needs room on the device."""
        return any(each.req.slots and each.req.holding is None for each in self._all)

    def begin(self, req: Req) -> bool:
        """Copies the KV of a choice that decodes to host memory. The caller takes its row and pages back.

        False: it has to begin again. Host memory is full or the dearer way, or the host knows too few tokens that were
        drawn here.
        """
        again = max(self._book.lookahead - 1, 0)
        num_new = len(req.outputs) - req.num_replayed - again
        num_tokens = req.prompt_len + num_new - 1  # no launch that is over has read the last one
        if num_new < 1 or (self._costs is not None and not is_cheaper_on_host(num_tokens, self._costs)):
            return False
        slots = self._book.take_slots(num_tokens)
        if slots is None:
            return False

        self._num_begun += 1
        req.num_again = again
        req.num_sampled = len(req.outputs) - again
        req.slots = tuple(slots)
        self._all.append(_Spilled(req, req.held.flushes, self._copy(_spill(req.held.pages, req.slots))))
        return True

    def fill(self) -> Iterator[tuple[Req, Holding]]:
        """Those for which there is room on the device, each with its new row and pages. Begins to copy their KV back.

        Nobody overtakes.
        """
        self._all = [each for each in self._all if each.req.slots]
        for each in [each for each in self._all if each.req.holding is None]:
            req = each.req
            if not self._is_over(each.ticket):
                return
            holdings = self._book.admit(req.prompt_len, req.num_written + 1, 1, max_tokens=req.longest)
            if holdings is None:
                return
            (holding,) = holdings
            holding.flushes = each.flushes
            each.ticket = self._copy(_fill(req.slots, holding.pages))
            yield req, holding

    def filled(self) -> list[Req]:
        """Those whose KV is back. Gives their slots back."""
        over = [each for each in self._all if each.req.slots and each.req.holding and self._is_over(each.ticket)]
        for each in over:
            self._all.remove(each)
            self._book.give_slots(each.req.slots)
            each.req.slots = ()
            each.req.num_resumed = each.req.num_sampled
        return [each.req for each in over]

    def forget(self, req: Req) -> None:
        """It has ended, wherever it is. Gives its slots back, if it has some."""
        if req.slots:
            self._book.give_slots(req.slots)
            req.slots = ()


def _spill(pages: Sequence[int], slots: tuple[int, ...]) -> Callable[[int], Operation]:
    return lambda ticket: Spill(ticket, tuple(pages[: len(slots)]), slots)


def _fill(slots: tuple[int, ...], pages: Sequence[int]) -> Callable[[int], Operation]:
    return lambda ticket: Fill(ticket, slots, tuple(pages[: len(slots)]))
