"""Decides what an executor runs, and remembers it: who holds which row and pages, who decodes, what is in flight.

    role: launch --Plan--> executor --StepResult--> drawn: role

It knows rows, pages and lengths as numbers. One planner feeds one executor, which may be another process.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocol.kv_layout import KvLayout
from protocol.prefixes import packed
from scheduler.plan import (
    CopyPages,
    Done,
    Grant,
    Join,
    LayerWritten,
    Operation,
    Outcome,
    Owner,
    Plan,
    StageIn,
    StepResult,
    WriteDraft,
)
from scheduler.planning.chunks import ExtendChunk, chunk_of
from scheduler.planning.growth import Growth
from scheduler.planning.kv_book import CacheKey, Holding, IsRead, KvBook
from scheduler.planning.kv_pages import PageState, prompt_copies
from scheduler.planning.req import Req, join_of
from scheduler.planning.speculation import Speculation
from scheduler.planning.spills import Costs, Spills


class Executes(Protocol):
    """What runs operations, in this process or in another."""

    def submit(self, operation: Operation) -> None:
        """Enqueues an operation. Never waits for a device."""
        ...

    def poll(self) -> Sequence[Outcome]:
        """What has happened since the last call. RuntimeError when a copy has failed."""
        ...


@dataclass(eq=False)
class Launched:
    """A launch, as the planner remembers it."""

    ticket: int
    chunks: tuple[ExtendChunk, ...]
    decodes: tuple[Req, ...]
    num_steps: int = 0  # see Plan
    layers: deque[int] = field(default_factory=deque)  # written, and not yet taken by the role
    computed_at: float | None = None  # see StepResult
    hidden: tuple[bytes, ...] = ()  # see StepResult

    @property
    def reqs(self) -> list[Req]:
        """All requests of the launch. A request may appear twice."""
        return [*(req for chunk in self.chunks for req in (chunk.req, *chunk.samples)), *self.decodes]


class Planner:
    """`book` keeps rows and pages of the executor's memory. `has_twin`: that memory has a twin on the host.
    `costs`: see Spills. `speculation`: the executor has a draft."""

    def __init__(
        self,
        book: KvBook,
        executor: Executes,
        layout: KvLayout,
        vocab_size: int,
        *,
        has_twin: bool = False,
        costs: Costs | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.book = book
        self.layout = layout
        self.vocab_size = vocab_size
        self.in_flight: deque[Launched] = deque()
        self.num_launches = 0
        self._executor = executor
        self._has_twin = has_twin

        self._holders: dict[Owner, Req] = {}
        # The owners in the last result and their requests, until a request is released.
        self._drawing: tuple[Sequence[Owner], list[Req | None]] = (), []
        self._decoding: tuple[Req, ...] = ()  # as the executor has them since the last plan, in its order
        self._rows: dict[Req, int] = {}  # of those that decode
        self._leaving: list[int] = []  # rows that the executor still decodes, until the next plan; not in _decoding
        self._speculation = speculation
        self._growth = Growth(book, speculation.width if speculation else 0)
        self._joining: list[Req] = []  # they decode from the next plan on
        self._grants: list[Grant] = []  # for the next plan
        self._copies: set[int] = set()  # tickets
        self._has_unwritten = False  # launches may have left KV of the draft unwritten; see WriteDraft
        self.spills = Spills(book, self._copy, self.is_over, costs)

    # ---- memory ----

    def admit(
        self,
        reqs: Sequence[Req],
        num_tokens: int,
        state: PageState = PageState.OWNED,
        key: CacheKey | None = None,
        *,
        grows: bool = False,
        unit: int = 0,
    ) -> bool:
        """Gives each choice of one prompt a row, and pages for `num_tokens` tokens. False: no room, or others that have
        begun wait for some.

        `key`: the first choice computes the prompt, or gets its KV, but not what the cache has of it. `grows`: they
        decode here. `unit`: see KvBook.admit.
        """
        if self._growth.is_waiting or self.spills.is_waiting:
            return False
        longest = reqs[0].longest if grows else 0
        holdings = self.book.admit(reqs[0].prompt_len, num_tokens, len(reqs), state, key, longest, unit)
        if holdings is None:
            return False
        reqs[0].num_computed = holdings[0].num_cached
        for req, holding in zip(reqs, holdings, strict=True):
            self._seat(req, holding)
        return True

    def _seat(self, req: Req, holding: Holding) -> None:
        req.holding = holding
        self._holders[holding.owner] = req

    def grow(self, req: Req, num_tokens: int) -> bool:
        """Adds pages to a context until `num_tokens` tokens fit. False: no room."""
        if self.book.grow(req.held, num_tokens) is None:
            return False
        if req.held.num_granted:
            self._grant(req.held)
        return True

    def keep(self, req: Req, salt: str) -> None:
        """Adds a choice's context to the cache, if it has decoded here. The launches that wrote it have succeeded."""
        if self.book.caches and req.has_draft and len(req.outputs) > req.num_replayed + 1:  # one may be prefill's
            self._write_draft()
            unread = 0 if self.book.lookahead else 1  # no launch has read the last one; a draft's KV depends on it
            outputs = req.outputs[req.num_replayed : max(req.num_replayed, len(req.outputs) - unread)]
            self.book.keep(req.held, CacheKey(packed((*req.prompt_ids, *outputs)), salt))

    def release(self, req: Req, is_read: IsRead | None = None) -> None:
        """Gives its row and pages back. A second call does nothing. `is_read`: see KvBook.release."""
        self.spills.forget(req)
        if req.holding is not None:
            self._unseat(req, is_read)

    def _unseat(self, req: Req, is_read: IsRead | None = None) -> None:
        self._write_draft()
        del self._holders[req.held.owner]
        self._drawing = (), []
        self.book.release(req.held, is_read)
        req.holding = None

    def spill(self, req: Req) -> bool:
        """Moves the KV of a choice that decodes to host memory, if that is possible and worth it. It goes on when there
        is room again. With a draft it must have begun: what the draft reads first is not kept."""
        if self._speculation and not req.held.has_begun:
            return False
        self._write_draft()
        if not self.spills.begin(req):
            return False
        self._unseat(req)
        if req in self._rows:  # its next row may be the same one, so it leaves now
            self._leaving.append(self._rows.pop(req))
            self._decoding = tuple([each for each in self._decoding if each is not req])
        self._joining = [each for each in self._joining if each is not req]
        return True

    def _write_draft(self) -> None:
        """The draft writes what it has still to write, before others read these pages or own them."""
        if self._has_unwritten:
            self._copy(WriteDraft)
            self._has_unwritten = False

    def fork(self, first: Req, others: Sequence[Req], in_twin: Sequence[int] = ()) -> int:
        """Gives each of `others` its own copy of the prompt pages of `first` that they do not share.

        `in_twin` are pages whose KV is in host memory; they are copied to the device before. Returns the ticket that
        must be over before these choices decode; 0 if they may decode in the next launch.
        """
        own, sizes = [req.held.pages for req in others], (first.prompt_len, self.book.page_size, self.book.lookahead)
        sources, targets = prompt_copies(first.held.pages, own, *sizes)
        if in_twin and self._has_twin:
            return self._copy(lambda ticket: StageIn(ticket, tuple(in_twin), tuple(sources), tuple(targets)))
        if sources:
            self._copy(lambda ticket: CopyPages(ticket, tuple(sources), tuple(targets)))
        return 0

    def is_over(self, ticket: int) -> bool:
        """Whether the copy with this ticket is over."""
        return ticket not in self._copies

    def collect(self) -> bool:
        """Reuses rows and pages that no launch, copy or transfer can touch any more. Whether there were any."""
        oldest = min(self._copies, default=self.book.newest_ticket + 1)
        if self.in_flight:
            oldest = min(oldest, self.in_flight[0].ticket)
        return self.book.collect(oldest - 1)

    def _copy(self, made: Callable[[int], Operation]) -> int:
        """Submits a copy with a new ticket. Returns the ticket."""
        ticket = self.book.next_ticket()
        self._copies.add(ticket)
        self._executor.submit(made(ticket))
        return ticket

    def _grant(self, held: Holding) -> None:
        """Tells the executor of a holding's pages with the next plan, unless it knows them."""
        known, held.num_granted = held.num_granted, len(held.pages)
        if known < len(held.pages):
            self._grants.append(Grant(held.row, held.generation, known, tuple(held.pages[known:])))

    # ---- launches ----

    def join(self, reqs: Sequence[Req]) -> None:
        """These choices decode from the next launch on, after those that decode already.

        The KV of each is written by what was submitted before, up to its last token.
        """
        self._joining += reqs
        for req in reqs:
            if req.holding is not None:
                self._growth.watch(req)

    def make_room(self) -> list[Req]:
        """Adds the pages that the next launch needs. Returns the choices that give way, because there are too few.

        A choice that gets none, and does not give way, sits out a launch. Nobody comes back before it has some.
        """
        for req in self._growth.make_room():
            self._grant(req.held)
            if req not in self._rows and req not in self._joining:
                self._joining.append(req)
        if not self._growth.short:
            for req, holding in self.spills.fill():
                holding.has_begun = True
                self._seat(req, holding)
            return []
        launched = [req for each in self.in_flight for req in each.decodes]
        return self._growth.victims((*self._decoding, *self._joining, *launched))

    def go_on(self, req: Req) -> None:
        """Lets a choice decode again for which a launch has drawn nothing. It may have left already."""
        if req not in self._decoding and req not in self._joining:
            self._joining.append(req)
            self._growth.watch(req)

    @property
    def num_going_on(self) -> int:
        """Choices that decode and have not ended. An ended one leaves with the next plan."""
        return sum(req.finish is None for req in (*self._decoding, *self._joining))

    def decodes(self) -> tuple[Req, ...]:
        """The choices that decode in the next launch: without those that have ended or whose last output is in flight.

        The order is the executor's.
        """
        going_on = [req for req in self._decoding if req.finish is None and req.num_sampled < req.sampling.max_tokens]
        if self._growth.short:
            going_on = [req for req in going_on if req not in self._growth.short]
            self._joining = [req for req in self._joining if req not in self._growth.short]
        if self._joining:  # some may have ended, or never had more than one output
            self._joining = [req for req in self._joining if req.finish is None and req.num_left > 0]
        if len(going_on) == len(self._decoding) and not self._joining:
            return self._decoding
        return (*going_on, *self._joining)

    def launch(
        self,
        chunks: Sequence[ExtendChunk] = (),
        decodes: tuple[Req, ...] = (),
        *,
        relay: bool = True,
        ships: bool = False,
        resting: tuple[Req, ...] = (),
    ) -> Launched:
        """Submits a plan, and counts its requests' progress as if it had succeeded. `decodes` is from decodes().

        `resting`, also from decodes(), do not decode in this launch, but in the next one.
        """
        leaves, joins = self._changes(decodes)
        if resting:
            self._joining = list(resting)
        for chunk in chunks:
            self._grant(chunk.req.held)
        own = self._speculation
        plan = Plan(
            ticket=self.book.next_ticket(),
            num_decodes=len(decodes),
            grants=tuple(self._grants),
            leaves=leaves,
            joins=joins,
            chunks=tuple([chunk_of(chunk, self.layout.lookahead) for chunk in chunks]),
            relay=relay,
            ships=ships,
            num_steps=own.next_steps(len(decodes)) if own else 0,
            topk=own.topk if own else 1,
            num_nodes=own.num_nodes if own else 0,
        )

        self._grants.clear()
        for chunk in chunks:
            chunk.req.num_computed = chunk.end
            for req in chunk.samples:
                req.num_sampled += 1
        for req in decodes:
            req.num_sampled += 1
        if decodes:
            self._growth.launched()

        if self.layout.lookahead == 1:  # several draft layers do not wait
            self._has_unwritten = not plan.num_steps and (self._has_unwritten or bool(decodes))
        self.num_launches += 1
        launched = Launched(plan.ticket, tuple(chunks), decodes, plan.num_steps)
        self.in_flight.append(launched)
        self._executor.submit(plan)
        return launched

    def _changes(self, decodes: tuple[Req, ...]) -> tuple[tuple[int, ...], tuple[Join, ...]]:
        """The rows that leave and the choices that join, so that exactly `decodes` decode."""
        if decodes is self._decoding and not self._leaving:
            return (), ()

        staying = set(decodes)
        leaves = (*self._leaving, *[self._rows.pop(req) for req in self._decoding if req not in staying])
        self._leaving.clear()
        joining = [req for req in self._joining if req in staying]
        for req in joining:
            self._grant(req.held)
            self._rows[req] = req.held.row
        self._joining.clear()
        self._decoding = decodes
        return leaves, tuple([join_of(req, self.layout.lookahead) for req in joining])

    def poll(self) -> list[tuple[Launched, StepResult]]:
        """Takes what the executor reports. Returns the launches that are over, and their results."""
        over = []
        for outcome in self._executor.poll():
            if isinstance(outcome, Done):
                self._copies.discard(outcome.ticket)
            elif isinstance(outcome, LayerWritten):
                next(each for each in self.in_flight if each.ticket == outcome.ticket).layers.append(outcome.layer)
            else:
                launched = self.in_flight.popleft()
                assert launched.ticket == outcome.ticket, (launched.ticket, outcome.ticket)
                launched.computed_at, launched.hidden = outcome.computed_at, outcome.hidden
                over.append((launched, outcome))
        self.join(self.spills.filled())
        return over

    @property
    def hidden_size(self) -> int:
        """Numbers of the hidden states that a draft begins with; 0 without a draft."""
        return self._speculation.hidden_size if self._speculation else 0

    @property
    def counters(self) -> dict[str, float]:
        """For WorkerStats."""
        return {**self.spills.counters, **(self._speculation.counters if self._speculation else {})}

    def drawn(self, owners: Sequence[Owner], runs: Sequence[tuple[int, ...]]) -> list[tuple[Req, tuple[int, ...]]]:
        """The choices that hold these rows, each with its run of tokens. Leaves out rows that were given away since."""
        if owners is not self._drawing[0]:  # most launches draw for the same rows as the one before
            self._drawing = owners, list(map(self._holders.get, owners))
        return [(req, run) for req, run in zip(self._drawing[1], runs, strict=True) if req is not None]

    def count_kept(self, launched: Launched, drawn: Sequence[tuple[Req, tuple[int, ...]]]) -> None:
        """Counts the proposals of a launch for the choices that still use them. `drawn`: what `drawn` has returned."""
        if self._speculation and launched.decodes:
            decoding = set(launched.decodes)
            runs = [run for req, run in drawn if req in decoding and req.has_draft]
            self._speculation.count(launched.num_steps, runs)
