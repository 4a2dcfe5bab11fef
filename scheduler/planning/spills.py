"""Choices whose KV is in host memory: they were preempted and wait for room on the device.

    decodes --copy_out--> copied out --Done--> waits --copy_back--> copied back --Done--> take_back: decodes
              host pages taken                         row, pages                 host pages given back

No message leaves the worker meanwhile. What a launch in flight draws for the choice is dropped, and drawn again. A
choice that ends on its way is forgotten here; the KV manager keeps its host pages, row and pages until the copy ends.

KV of a draft's last slots may depend on proposals (LayerGroup.lookahead). What the draft needs to write them again is
not kept. So with a draft of J layers the last J - 1 known outputs are drawn once more, and no message repeats them:
with J = 3 and outputs 50, 51, 52 a choice goes on behind 50, and the next two draws, 51 and 52, are dropped.
A choice that has lost its draft in between, and leaves again, still draws once more what it had left to draw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scheduler.plan import Fill, Operation, Spill
from scheduler.planning.kv_copies import KvCopies
from scheduler.planning.kv_manager import Holding, KvManager
from scheduler.planning.req import Req

# What a usual machine does in a second: bytes copied to host memory, bytes moved to another worker, operations.
RATES: Final = {"cpu": (5e9, 1e9, 5e10), "cuda": (2e10, 1e10, 2e14)}
RESTART_S: Final = 0.005  # messages, and a place in two more launches


@dataclass(frozen=True)
class Costs:
    """Seconds that it costs to preempt a choice and to resume it, by where its KV goes."""

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


class Back(NamedTuple):
    """A choice whose KV is on the device again: its new row and pages."""

    req: Req
    holding: Holding


@dataclass(eq=False)
class Spilled:
    """A choice on its way to host memory, there, or on its way back."""

    req: Req
    host_pages: tuple[int, ...]  # of host memory
    left: Holding  # what it held before
    ticket: int  # of its newest copy
    holding: Holding | None = None  # while it is copied back: the planner's once its KV is there


class Spills:
    """First come, first served. `costs` None: always to host memory, if there is room."""

    def __init__(self, kv_manager: KvManager, copies: KvCopies, costs: Costs | None) -> None:
        self.away: dict[Req, Spilled] = {}  # in the order in which they left
        self._num_begun = 0
        self._kv_manager = kv_manager
        self._copies = copies
        self._costs = costs
        self._redrawn: dict[Req, int] = {}  # how many of its last outputs launches draw once more

    @property
    def counters(self) -> dict[str, float]:
        """For WorkerStats."""
        return {"spills": self._num_begun, "spilled_now": len(self.away)}

    @property
    def is_waiting(self) -> bool:
        """Whether a choice needs room on the device."""
        return any(spilled.holding is None for spilled in self.away.values())

    def copy_out(self, req: Req) -> bool:
        """Copies the KV of a choice that decodes to host memory. The caller takes its row and pages back.

        False: it has to begin again. Host memory is full or the dearer way, or the host knows too few tokens that were
        drawn here.
        """
        num_redrawn = max(self._kv_manager.lookahead - 1, 0) if req.held.has_draft else self.num_redrawn(req)
        num_new = len(req.outputs) - req.num_replayed - num_redrawn
        num_tokens = req.prompt_len + num_new - 1  # no launch that is over has read the last one
        if num_new < 1 or (self._costs is not None and not is_cheaper_on_host(num_tokens, self._costs)):
            return False
        host_pages = self._kv_manager.take_host_pages(num_tokens)
        if host_pages is None:
            return False

        self._num_begun += 1
        req.num_sampled = len(req.outputs) - num_redrawn
        if num_redrawn:
            self._redrawn[req] = num_redrawn
        ticket = self._copies.submit(_spill(req.held.pages, tuple(host_pages)))
        self.away[req] = Spilled(req, tuple(host_pages), req.held, ticket)
        return True

    def copy_back(self) -> None:
        """Gives rows and pages to choices for which there is room on the device, and begins to copy their KV back.

        The first that finds no room holds the later ones back.
        """
        for spilled in self.away.values():
            if spilled.holding is not None:
                continue
            req = spilled.req
            if not self._copies.is_over(spilled.ticket):
                return
            holdings = self._kv_manager.admit(req.prompt_len, req.num_written + 1, 1, max_tokens=req.longest)
            if holdings is None:
                return
            (spilled.holding,) = holdings
            spilled.holding.goes_on_from(spilled.left)
            spilled.ticket = self._copies.submit(_fill(spilled.host_pages, spilled.holding.pages))

    def take_back(self) -> list[Back]:
        """The choices whose KV is back. Gives their host pages back."""
        back: list[Back] = []
        if not self.away:
            return back
        for spilled in list(self.away.values()):
            if spilled.holding is not None and self._copies.is_over(spilled.ticket):
                del self.away[spilled.req]
                self._kv_manager.give_host_pages(spilled.host_pages)
                spilled.req.num_resumed = spilled.req.num_sampled
                back.append(Back(spilled.req, spilled.holding))
        return back

    def forget(self, req: Req) -> None:
        """A choice has ended. Gives back its host pages, and the row and pages to which it was being copied."""
        self._redrawn.pop(req, None)
        if (spilled := self.away.pop(req, None)) is not None:
            self._kv_manager.give_host_pages(spilled.host_pages)
            if spilled.holding is not None:
                self._kv_manager.release(spilled.holding)

    # ---- outputs that are drawn once more ----

    @property
    def redraws(self) -> bool:
        """Whether any choice draws outputs once more."""
        return bool(self._redrawn)

    def num_redrawn(self, req: Req) -> int:
        """How many of its last outputs launches draw once more."""
        return self._redrawn.get(req, 0)

    def take_redrawn(self, req: Req, run: tuple[int, ...]) -> tuple[int, ...]:
        """Takes the outputs that are drawn once more from the run of a launch. Returns what is new.

        The launch was counted as one output.
        """
        repeated = min(self._redrawn.get(req, 0), len(run))
        if not repeated:
            return run
        self._redrawn[req] -= repeated
        if not self._redrawn[req]:
            del self._redrawn[req]
        req.num_sampled += repeated if repeated < len(run) else repeated - 1
        return run[repeated:]


def _spill(pages: Sequence[int], host_pages: tuple[int, ...]) -> Callable[[int], Operation]:
    return lambda ticket: Spill(ticket, tuple(pages[: len(host_pages)]), host_pages)


def _fill(host_pages: tuple[int, ...], pages: Sequence[int]) -> Callable[[int], Operation]:
    return lambda ticket: Fill(ticket, host_pages, tuple(pages[: len(host_pages)]))
