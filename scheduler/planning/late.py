"""Rows whose masks are late, and prompts whose outputs are not read yet: both wait for work beside the launches.

    decodes --drew no token in a launch--> late --in no launch in flight: MakeMask--> asked --MaskReady--> decodes
    admitted with outputs of an earlier attempt: MakeMask --> replayed --MaskReady--> its prompt is computed

Rows without a grammar, and those whose masks are quick, go on meanwhile.
"""

from collections.abc import Callable, Iterable, Sequence

from scheduler.plan import DropMask, MakeMask, MaskReady, Owner
from scheduler.planning.launched import Launched
from scheduler.planning.req import Req, draw_of


class LateRows:
    """Late rows. `submit` gives an operation to the executor."""

    def __init__(self, submit: Callable[[MakeMask | DropMask], None]) -> None:
        self._submit = submit
        self._owners: dict[Req, Owner | None] = {}  # None: its mask is not asked for yet
        self.num_ready = 0

    def __bool__(self) -> bool:
        return bool(self._owners)

    def __contains__(self, req: Req) -> bool:
        return req in self._owners

    @property
    def reqs(self) -> Sequence[Req]:
        """The choices that sit out."""
        return [*self._owners]

    def add(self, reqs: Iterable[Req]) -> None:
        """A launch has drawn no token for these, and was counted as one output of each."""
        for req in reqs:
            req.num_sampled -= 1
            self._owners.setdefault(req, None)

    def ask(self, in_flight: Iterable[Launched]) -> None:
        """Has the masks made of those that are in no launch in flight."""
        waiting = [req for req, owner in self._owners.items() if owner is None]
        if not waiting:
            return
        launched = {req for launch in in_flight for req in launch.decodes}
        for req in waiting:
            if req not in launched:
                self._owners[req] = req.held.owner
                self._submit(MakeMask(draw_of(req, req.held)))

    def ready(self, outcome: MaskReady) -> list[Req]:
        """The choice whose mask is made, if it still has its row."""
        self.num_ready += 1
        owner = outcome.row, outcome.owner_number
        reqs = [req for req, asked in self._owners.items() if asked == owner]
        for req in reqs:
            del self._owners[req]
        return reqs

    def forget(self, req: Req) -> None:
        """It gives its row back."""
        if (owner := self._owners.pop(req, None)) is not None:
            self._submit(DropMask(*owner))


class Replays:
    """Choices that go on from an earlier attempt in a grammar, whose prompts are computed here. To read their outputs
    may take long, and a chunk draws its first token in its launch. So their prompts wait. `submit` as above."""

    def __init__(self, submit: Callable[[MakeMask | DropMask], None]) -> None:
        self._submit = submit
        self._owners: dict[Req, Owner] = {}

    def __contains__(self, req: Req) -> bool:
        return req in self._owners

    def begin(self, req: Req) -> None:
        """It was admitted. Has its outputs read, if it has some and a grammar."""
        if req.num_replayed and req.sampling.grammar:
            self._owners[req] = req.held.owner
            self._submit(MakeMask(draw_of(req, req.held)))

    def ready(self, outcome: MaskReady) -> None:
        """The outputs of this row are read."""
        owner = outcome.row, outcome.owner_number
        for req in [req for req, asked in self._owners.items() if asked == owner]:
            del self._owners[req]

    def forget(self, req: Req) -> None:
        """It gives its row back."""
        if (owner := self._owners.pop(req, None)) is not None:
            self._submit(DropMask(*owner))
