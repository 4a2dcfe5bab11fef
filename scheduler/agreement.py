"""When the ranks of a group may launch: all of them, together, the same step. Pure.

A rank announces a step from its plan, before lengths are known. Its executor gets the plan when every rank has
announced the step, so each knows what all others compute. A rank without work that hears of a step plans one without
rows.

    of the next step          own row    other rows
    resting                   no         none             nobody launches, nobody spins
    called                    no         some             this rank plans, with rows or without
    announced                 yes        not all          the plan waits; the rank goes on with its sockets
    agreed                    yes        all              the executor gets the plan; the step after it is the next one

A rank announces step s + 1 only after its executor has got the plan of s. So another rank is one step ahead at most.
"""

from typing import Final

from protocol.errors import GroupBroken
from protocol.messages_group import StepRow, StepShape

PADDED_ROWS: Final = 256  # of all ranks: up to so many, a product takes as long as reading its weights


def wants_graph(num_tokens: int, max_graphed: int, num_ranks: int, *, has_chunks: bool) -> bool:
    """Whether ranks that decode may replay graphs while this rank computes so many tokens.

    A rank with chunks of prompts replays none. It computes eagerly, and pads its tokens to the size of the graph, since
    a graph's collectives have one size. All ranks then compute so many rows of each. That is worth it only if the rows
    of all ranks are few: the ranks wait for one another at each layer, so a replay beside a long prompt gains nothing.
    """
    return num_tokens <= max_graphed and (not has_chunks or num_tokens * num_ranks <= PADDED_ROWS)


class Agreement:
    """What rank `rank` of `size` knows of the next step. `shape` is that step, once all ranks have announced it.
    `outgoing` is for the other ranks."""

    def __init__(self, epoch: int, rank: int, size: int) -> None:
        self.epoch, self.rank, self.size = epoch, rank, size
        self.step = 1  # the next one
        self.shape: StepShape | None = None
        self.outgoing: list[StepRow] = []
        self._rows: dict[int, StepRow] = {}  # of the next step, by rank
        self._ahead: dict[int, StepRow] = {}  # of the step after it

    @property
    def is_announced(self) -> bool:
        """Whether this rank has announced the next step."""
        return self.rank in self._rows

    @property
    def is_called(self) -> bool:
        """Whether another rank has announced the next step, and this one has not."""
        return bool(self._rows) and not self.is_announced

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not announced the next step, if somebody has."""
        return tuple(rank for rank in range(self.size) if rank not in self._rows) if self._rows else ()

    def announce(self, num_tokens: int, *, wants_graph: bool = False) -> None:
        """This rank would launch so many tokens as the next step. Once for each step."""
        assert not self.is_announced, f"step {self.step} is announced already"
        self._rows[self.rank] = StepRow(self.epoch, self.step, self.rank, num_tokens, wants_graph)
        self.outgoing.append(self._rows[self.rank])
        self._settle()

    def take(self, row: StepRow) -> None:
        """Another rank has announced a step. GroupBroken if it cannot be true."""
        if row.epoch != self.epoch or row.rank == self.rank or row.rank >= self.size:
            mine = f"rank {self.rank} of {self.size} in epoch {self.epoch}"
            raise GroupBroken(f"rank {row.rank} of epoch {row.epoch} announced a step to {mine}")
        rows = {self.step: self._rows, self.step + 1: self._ahead}.get(row.step)
        if rows is None:
            raise GroupBroken(f"rank {row.rank} announced step {row.step}, but the next one here is {self.step}")
        known = rows.setdefault(row.rank, row)
        if known != row:
            raise GroupBroken(f"rank {row.rank} announced step {row.step} twice: {_said(known)}, then {_said(row)}")
        self._settle()

    def launched(self) -> None:
        """The executor has got this rank's plan of the next step, which was agreed."""
        assert self.shape is not None, f"step {self.step} is not agreed"
        self.step, self.shape = self.step + 1, None
        self._rows, self._ahead = self._ahead, {}

    def _settle(self) -> None:
        """Makes the shape, once the rows of all ranks are there."""
        if len(self._rows) == self.size:
            self.shape = StepShape.of(tuple([self._rows[rank] for rank in range(self.size)]))


def _said(row: StepRow) -> str:
    return f"{row.num_tokens} tokens" + (" by a graph" if row.wants_graph else "")
