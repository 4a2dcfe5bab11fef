"""Who decodes: the choices that the executor has since the last plan, and what the next plan changes.

join --> joining --next plan--> decoding --ended, short of pages, late, or paused--> left, may join again
                                   '--its KV goes to host memory: its row leaves with the next plan
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from scheduler.planning.req import Req


class RosterChange(NamedTuple):
    """What a plan changes: rows that leave, and choices that join."""

    leaves: tuple[int, ...]
    joins: list[Req]


class Roster:
    """Keeps the executor's order: those that decode, then those that join."""

    def __init__(self) -> None:
        self.decoding: tuple[Req, ...] = ()  # as the executor has them since the last plan
        self.rows: dict[Req, int] = {}  # of those that decode
        self.joining: list[Req] = []  # they decode from the next plan on
        self.leaving: list[int] = []  # rows that the executor still decodes, until the next plan; not in `decoding`

    @property
    def all(self) -> tuple[Req, ...]:
        """Those that decode and those that join."""
        return (*self.decoding, *self.joining)

    @property
    def num_going_on(self) -> int:
        """Choices that decode and have not ended. An ended one leaves with the next plan."""
        return sum(req.finish is None for req in self.all)

    def join(self, reqs: Sequence[Req]) -> None:
        """These decode from the next plan on."""
        self.joining += reqs

    def stay(self, req: Req) -> None:
        """It decodes in the next launch, too, or joins again if it sat out."""
        if req not in self.rows and req not in self.joining:
            self.joining.append(req)

    def remove(self, req: Req) -> None:
        """Its row goes to others: it leaves with the next plan."""
        if req in self.rows:  # its next row may be the same one
            self.leaving.append(self.rows.pop(req))
            self.decoding = tuple([other for other in self.decoding if other is not req])
        self.joining = [other for other in self.joining if other is not req]

    def next(self, out: Collection[Req]) -> tuple[Req, ...]:
        """Who decodes in the next launch: all but those that have ended, whose last output is in flight, or that sit
        `out`. The order is the executor's."""
        going_on = [req for req in self.decoding if req.finish is None and req.num_sampled < req.sampling.max_tokens]
        if out:
            going_on = [req for req in going_on if req not in out]
            self.joining = [req for req in self.joining if req not in out]
        if self.joining:  # some may have ended, or never had more than one output
            self.joining = [req for req in self.joining if req.finish is None and req.num_left > 0]
        if len(going_on) == len(self.decoding) and not self.joining:
            return self.decoding
        return (*going_on, *self.joining)

    def change(self, decodes: tuple[Req, ...], paused: tuple[Req, ...]) -> RosterChange:
        """The changes of the batch after which exactly `decodes` decode. Choices in `paused` join later."""
        if decodes is self.decoding and not self.leaving and not paused:
            return RosterChange((), [])

        staying = set(decodes)
        leaves = (*self.leaving, *[self.rows.pop(req) for req in self.decoding if req not in staying])
        joins = [req for req in self.joining if req in staying]
        self.rows.update((req, req.held.row) for req in joins)
        self.leaving.clear()
        self.decoding, self.joining = decodes, list(paused)
        return RosterChange(leaves, joins)
