"""Decides what an executor runs, and remembers it: who holds which row and pages, who decodes, what is in flight.

    role: launch --Plan--> executor --StepResult--> Results.take: role

It knows rows, pages and lengths as numbers. One planner feeds one executor, which may be another process.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from protocol.kv_layout import KvLayout
from protocol.prefixes import packed
from scheduler.agreement import Agreement
from scheduler.plan import (
    Done,
    GrammarLearnt,
    LayerWritten,
    Operation,
    Outcome,
    StepResult,
)
from scheduler.planning.chunks import ExtendChunk
from scheduler.planning.draft_writes import DraftWrites
from scheduler.planning.grammars import Grammars
from scheduler.planning.growth import Growth
from scheduler.planning.kv_copies import KvCopies
from scheduler.planning.kv_manager import CacheKey, Holding, IsRead, KvManager
from scheduler.planning.kv_pages import PageState
from scheduler.planning.late import LateRows, Replays
from scheduler.planning.launched import Launched, Over, Results
from scheduler.planning.plans import Plans
from scheduler.planning.req import Req
from scheduler.planning.roster import Roster
from scheduler.planning.speculation import Speculation
from scheduler.planning.spills import Costs, Spills
from scheduler.planning.steps import Steps


class Executes(Protocol):
    """What runs operations, in this process or in another."""

    def submit(self, operation: Operation) -> None:
        """Enqueues an operation. Never waits for a forward; with a draft, for a small copy of known lengths."""
        ...

    def poll(self) -> Sequence[Outcome]:
        """What has happened since the last call. DeviceBroken as Executor.poll has it."""
        ...


class Planner:
    """`kv_manager` hands out rows and pages of the executor's memory. `has_twin`: that memory has a twin on the host.
    `costs`: see Spills. `speculation`: how the executor's draft is used, if it has one. `agreement`, `max_graphed`: see
    Steps."""

    def __init__(
        self,
        kv_manager: KvManager,
        executor: Executes,
        layout: KvLayout,
        vocab_size: int,
        *,
        has_twin: bool = False,
        costs: Costs | None = None,
        speculation: Speculation | None = None,
        agreement: Agreement | None = None,
        max_graphed: int = 0,
    ) -> None:
        self.kv_manager, self.layout, self.vocab_size = kv_manager, layout, vocab_size
        self.in_flight: deque[Launched] = deque()
        self.num_launches = 0
        self.num_idle = 0  # launches without rows, for other ranks of the group
        self.num_plain = 0  # launches without the draft that there is; see Plan.drafts
        self.speculation = speculation or Speculation.without_draft()
        self.steps = Steps(executor.submit, agreement, self.speculation.shape, max_graphed)
        self.copies = KvCopies(kv_manager, self.steps.submit, has_twin)
        self.roster = Roster()
        self.spills = Spills(kv_manager, self.copies, costs)
        self.results = Results(self.speculation, self.spills)
        self.grammars = Grammars(self.steps.submit)
        self.late, self.replays = LateRows(self.steps.submit), Replays(self.steps.submit)
        self._executor = executor
        self._growth = Growth(kv_manager, self.speculation.shape.width)
        self._draft_writes = DraftWrites(layout.lookahead, self.copies.submit)
        self._plans = Plans(kv_manager, self.roster, self.spills)
        self._drafting: tuple[tuple[Req, ...], int] = (), 0  # who decodes, and how many of them have a draft

    # ---- memory ----

    def admit(
        self,
        reqs: Sequence[Req],
        num_tokens: int,
        state: PageState = PageState.OWNED,
        key: CacheKey | None = None,
        *,
        grows: bool = False,
        alignment: int = 0,
        has_draft: bool = True,
    ) -> bool:
        """Gives each choice of one prompt a row, and pages for `num_tokens` tokens. False: there is no room, or choices
        that have begun wait for some.

        `key`: looks the prompt up in the cache. Tokens found there are neither computed nor transferred: a prompt of
        512 with 500 cached computes 12. `grows`: they decode here. `alignment`: as in KvManager.admit.
        `has_draft`: see Holding. False while the draft rests, too.
        """
        if self._growth.is_waiting or self.spills.is_waiting:
            return False
        longest = reqs[0].longest if grows else 0
        has_draft = self._has_draft(reqs[0], grows=grows, has_draft=has_draft)
        size = reqs[0].prompt_len, num_tokens, len(reqs)
        holdings = self.kv_manager.admit(*size, state, key, longest, alignment, has_draft=has_draft)
        if holdings is None:
            return False
        reqs[0].num_computed = holdings[0].num_cached
        for req, holding in zip(reqs, holdings, strict=True):
            self._seat(req, holding)
        return True

    def num_cached(
        self, req: Req, key: CacheKey | None, *, grows: bool = False, alignment: int = 0, has_draft: bool = True
    ) -> int:
        """Tokens of a prompt that it would find cached if it were admitted now, with the same arguments."""
        has_draft = self._has_draft(req, grows=grows, has_draft=has_draft)
        return self.kv_manager.num_cached(key, alignment, has_draft=has_draft)

    def _has_draft(self, req: Req, *, grows: bool, has_draft: bool) -> bool:
        """Whether a choice that is admitted now has KV of the draft, if there is one. Nothing is proposed for an answer
        in a grammar."""
        may_draft = not self.speculation.rests and not (self.speculation.has_draft and req.sampling.grammar)
        return has_draft and (not grows or may_draft)

    def _seat(self, req: Req, holding: Holding) -> None:
        req.holding = holding
        self.results.seated(req)

    def keep(self, req: Req, salt: str) -> None:
        """Adds a choice's context to the cache, if it has decoded here. The launches that wrote it have succeeded."""
        has_decoded = len(req.outputs) > req.num_replayed + 1  # one may be prefill's
        if self.kv_manager.caches and has_decoded:
            self._draft_writes.settle()
            # No launch has read the last output. A draft's KV depends on it.
            unread = 0 if self.kv_manager.lookahead else 1
            outputs = req.outputs[req.num_replayed : max(req.num_replayed, len(req.outputs) - unread)]
            self.kv_manager.keep(req.held, CacheKey(packed((*req.prompt_ids, *outputs)), salt))

    def release(self, req: Req, is_read: IsRead | None = None) -> None:
        """Gives its row and pages back. A second call does nothing. `is_read`: see KvManager.release."""
        self.spills.forget(req)
        self._plans.forget(req)
        if req.holding is not None:
            self._unseat(req, is_read)

    def _unseat(self, req: Req, is_read: IsRead | None = None) -> None:
        self._draft_writes.settle()
        self.late.forget(req)
        self.replays.forget(req)
        self.results.unseated(req)
        self.kv_manager.release(req.held, is_read)
        req.holding = None

    def collect(self) -> bool:
        """Reuses rows and pages that no launch, copy or transfer can touch any more. Whether there were any."""
        oldest = self.copies.oldest
        if self.in_flight:
            oldest = min(oldest, self.in_flight[0].ticket)
        return self.kv_manager.collect(oldest - 1)

    # ---- who decodes ----

    def join(self, reqs: Sequence[Req], hidden: bytes = b"") -> None:
        """These choices decode from the next launch on, after those that decode already.

        The KV of each is written by what was submitted before, up to its last token. `hidden`: see Join.
        """
        self.roster.join(reqs)
        for req in reqs:
            if req.holding is not None:
                self._growth.watch(req)
                if hidden and req.holding.has_draft:
                    self._plans.join_with(req, hidden)

    def make_room(self) -> list[Req]:
        """Finds pages for the next launch. Returns the choices that are preempted and begin again elsewhere.

        Choices whose pages run out get more. If all have what they need, choices in host memory resume. If not, a
        choice sits out the launch while pages come free anyway. If too few do, some choices are preempted: the KV of
        each goes to host memory, or it begins again. None resumes before the others have pages.
        """
        for req in self._growth.grow_due():
            self._plans.grant(req.held)
            if req not in self.late:
                self.roster.stay(req)
        if not self._growth.out_of_pages:
            self.spills.copy_back()
            return []

        launched = [req for launch in self.in_flight for req in launch.decodes]
        preempted = self._growth.to_preempt((*self.roster.all, *launched, *self.late.reqs))
        return [req for req in preempted if not self.spill(req)]

    def spill(self, req: Req) -> bool:
        """Moves the KV of a choice that decodes to host memory, if that is possible and worth it. It goes on when there
        is room again. With KV of the draft it must have begun: what the draft reads first is not kept."""
        if self.speculation.has_draft and req.held.has_draft and not req.has_begun:
            return False
        self._draft_writes.settle()
        if not self.spills.copy_out(req):
            return False
        self._unseat(req)
        self.roster.remove(req)
        return True

    def sit_out(self, reqs: Sequence[Req]) -> None:
        """A launch has drawn no token for these, because their masks are late. They leave with the next plan, even if
        they join again with it: the executor has counted the token. None of them needs a page to join."""
        self.late.add(reqs)
        for req in reqs:
            self.roster.remove(req)

    def decodes(self) -> tuple[Req, ...]:
        """The choices that decode in the next launch: without those that have ended, whose last output is in flight, or
        whose mask is late.

        The order is the executor's.
        """
        return self.roster.next(self._growth.out_of_pages)

    # ---- launches ----

    def launch(
        self,
        chunks: Sequence[ExtendChunk] = (),
        decodes: tuple[Req, ...] = (),
        *,
        relay: bool = True,
        ships: bool = False,
        paused: tuple[Req, ...] = (),
    ) -> Launched:
        """Makes a plan, and counts its requests' progress as if it had succeeded. `decodes` is from decodes().
        `paused`, also from decodes(), do not decode in this launch, but in the next one."""
        num_steps = self._next_steps(chunks, decodes)
        drafts = num_steps > 0 or ships or self._drafting[1] > 0 or any(chunk.req.held.has_draft for chunk in chunks)
        drafts |= not decodes and not chunks and not self.speculation.rests
        plan = self._plans.next(
            chunks, decodes, relay=relay, ships=ships, paused=paused, num_steps=num_steps, drafts=drafts
        )
        launched = Launched(plan.ticket, tuple(chunks), decodes, plan.num_steps, plan.drafts)
        launched.count_progress()
        if decodes:
            self._growth.launched()

        self.num_launches += 1
        self.num_plain += self.speculation.has_draft and not drafts and bool(decodes or chunks)
        self.in_flight.append(launched)
        self.steps.submit(plan)
        self._draft_writes.launched(plan)
        return launched

    def _num_drafting(self, decodes: tuple[Req, ...]) -> int:
        """How many of these have KV of the draft. Most launches have the rows of the one before."""
        if decodes is not self._drafting[0]:
            self._drafting = decodes, sum(req.held.has_draft for req in decodes)
        return self._drafting[1]

    def _next_steps(self, chunks: Sequence[ExtendChunk], decodes: tuple[Req, ...]) -> int:
        """How many tokens the next launch proposes. If the draft's rest begins with it, whatever holds pages gives up
        its KV of the draft."""
        rested = self.speculation.rests
        num_prompt_tokens = sum(chunk.end - chunk.start for chunk in chunks if rested or chunk.req.held.has_draft)
        num_steps = self.speculation.next_steps(len(decodes), self._num_drafting(decodes), num_prompt_tokens)
        if self.speculation.rests and not rested:
            self._draft_writes.settle()
            self.kv_manager.forget_drafts()
            self._drafting = decodes, 0
        return num_steps

    def launch_idle_batch(self) -> bool:
        """Plans and announces a step without rows, if another rank has announced one. True if it did.

        For a rank without work."""
        if not self.steps.is_called:
            return False
        self.num_idle += 1
        self.launch()
        return True

    def poll(self) -> list[Over]:
        """Takes what the executor reports. Returns the launches that are over."""
        self.steps.go_on()
        over: list[Over] = []
        for outcome in self._executor.poll():
            if isinstance(outcome, StepResult):
                launched = self.in_flight.popleft()
                assert launched.ticket == outcome.ticket, (launched.ticket, outcome.ticket)
                launched.computed_at, launched.hidden = outcome.computed_at, outcome.hidden
                launched.prompts = outcome.prompts
                is_like_others = not launched.chunks and not outcome.error
                self.speculation.over(launched.decodes if is_like_others else (), launched.kind, outcome.computed_at)
                over.append(Over(launched, outcome))
            elif isinstance(outcome, LayerWritten):
                next(one for one in self.in_flight if one.ticket == outcome.ticket).layers.append(outcome.layer)
            elif isinstance(outcome, Done):
                self.copies.done(outcome.ticket)
            elif isinstance(outcome, GrammarLearnt):
                self.grammars.learnt(outcome)
            else:
                self.replays.ready(outcome)
                for req in self.late.ready(outcome):
                    self.roster.stay(req)
        for req, holding in self.spills.take_back():
            holding.has_draft &= not self.speculation.rests
            self._seat(req, holding)
            self.join([req])
        return over

    @property
    def num_told(self) -> int:
        """Grammars that were compiled, and masks of late rows that were made: requests may go on with each."""
        return self.grammars.num_learnt + self.late.num_ready

    @property
    def num_running(self) -> int:
        """Choices that decode and have not ended, with those whose masks are late."""
        return self.roster.num_going_on + sum(req not in self.roster.all for req in self.late.reqs)

    @property
    def counters(self) -> dict[str, float]:
        """For WorkerStats."""
        own = {"idle_launches": self.num_idle}
        if self.speculation.has_draft:
            own["spec_plain_launches"] = self.num_plain
        return {**self.spills.counters, **self.speculation.counters, **own}
