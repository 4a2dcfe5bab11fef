"""Makes the plans of one planner: who leaves and who joins, and the pages that the executor does not know yet."""

from collections.abc import Sequence

from scheduler.plan import Grant, Join, Plan
from scheduler.planning.chunks import ExtendChunk, chunk_of
from scheduler.planning.kv_manager import Holding, KvManager
from scheduler.planning.req import Req, join_of
from scheduler.planning.roster import Roster
from scheduler.planning.spills import Spills


class Plans:
    """What the next plan has to tell is noted here until that plan is made."""

    def __init__(self, kv_manager: KvManager, roster: Roster, spills: Spills) -> None:
        self._kv_manager, self._roster, self._spills = kv_manager, roster, spills
        self._grants: list[Grant] = []
        self._hidden: dict[Req, bytes] = {}  # with which choices join; see Join

    def grant(self, held: Holding) -> None:
        """Tells of a holding's pages, unless the executor knows them."""
        num_known, held.num_granted = held.num_granted, len(held.pages)
        if num_known < len(held.pages):
            self._grants.append(Grant(held.row, held.owner_number, num_known, tuple(held.pages[num_known:])))

    def join_with(self, req: Req, hidden: bytes) -> None:
        """A choice that joins brings this hidden state."""
        self._hidden[req] = hidden

    def forget(self, req: Req) -> None:
        """A choice does not join any more."""
        self._hidden.pop(req, None)

    def next(
        self,
        chunks: Sequence[ExtendChunk],
        decodes: tuple[Req, ...],
        *,
        relay: bool,
        ships: bool,
        paused: tuple[Req, ...],
        num_steps: int,
        drafts: bool,
    ) -> Plan:
        """The next plan. The parameters are those of Planner.launch, and Plan's."""
        leaves, joins = self._roster.change(decodes, paused)
        for req in joins:
            self.grant(req.held)
        for chunk in chunks:
            self.grant(chunk.req.held)
        plan = Plan(
            ticket=self._kv_manager.next_ticket(),
            num_decodes=len(decodes),
            grants=tuple(self._grants),
            leaves=leaves,
            joins=tuple([self._join(req) for req in joins]),
            chunks=tuple([chunk_of(chunk, self._kv_manager.lookahead) for chunk in chunks]),
            relay=relay,
            ships=ships,
            num_steps=num_steps,
            drafts=drafts,
        )
        self._grants.clear()
        return plan

    def _join(self, req: Req) -> Join:
        hidden, num_redrawn = self._hidden.pop(req, b""), self._spills.num_redrawn(req)
        return join_of(req, num_redrawn=num_redrawn, hidden=hidden, lookahead=self._kv_manager.lookahead)
