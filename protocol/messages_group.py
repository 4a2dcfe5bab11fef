"""Messages between the ranks of one group, and what a launch of all of them is.

A group is what starts and ends together: one process a rank, one epoch. Each rank plans its own requests; all ranks
launch step 1, 2, ... together, because the layers that they share need every rank.

    rank --RankHello--> all others    it is there, then: it has loaded this model
    rank --StepRow--> all others      what it would launch as the next step
    rank --RankBeat--> all others     it lives, several times a second
"""

from dataclasses import dataclass
from typing import NamedTuple

from protocol.message import Boundary, Count, Flag, Ints, Message, Positive, Text


@dataclass(frozen=True)
class GroupPlace(Message):
    """Where a worker stands in its group. `epoch` is larger at each start of the group."""

    group: Text  # its name: the worker ids of its ranks are NAME.0, NAME.1, ...
    epoch: Positive
    rank: Count
    size: Positive


@dataclass(frozen=True)
class RankHello(Message):
    """A rank is there: its first message to each other one, and again when its model is loaded. Ranks that differ in
    anything but their rank are no group."""

    place: GroupPlace
    version: Text  # of Baton
    model: Text  # the digest of the fingerprint; "" before the model is loaded


@dataclass(frozen=True)
class StepRow(Message):
    """What one rank computes in a step: so many tokens, of its prompts and of the rows that decode. 0: it is idle.

    `wants_graph`: a captured graph could take so many tokens. Of a rank with chunks of prompts, which replays none,
    it says that the others may.
    """

    epoch: Positive
    step: Positive
    rank: Count
    num_tokens: Count
    wants_graph: Flag = False


@dataclass(frozen=True)
class RankBeat(Message):
    """A rank lives. Its executor has got the plans of all steps up to `step`. `running` is the oldest one of these that
    has not ended, or 0. `doing`: what the model is at, if it can tell: "gather 3 of step 17". `waits`: its device is in
    that collective, so that nothing but another rank holds it up. `rests`: its group leaves, and it has no work and
    gets none. When all ranks rest behind the same step, they end."""

    epoch: Positive
    rank: Count
    step: Count
    running: Count = 0
    doing: Text = ""
    rests: Flag = False
    waits: Flag = False


ToRank = RankHello | StepRow | RankBeat
TO_RANK: Boundary[ToRank] = Boundary("rank to rank", (RankHello, StepRow, RankBeat), max_bytes=64 * 1024)


class StepShape(NamedTuple):
    """All ranks know this of a step before any of them launches it: by rank, how many tokens it computes. Each rank
    makes the same one from the same rows, and its plan of the step carries it."""

    step: Count
    num_tokens: Ints
    graphs: Flag = False  # ranks that only decode replay the graph of one size, and the others pad to that size

    @property
    def padded(self) -> int:
        """Tokens of each rank in the group's collectives."""
        return max(self.num_tokens)

    @staticmethod
    def of(rows: tuple[StepRow, ...]) -> "StepShape":
        """The shape that the rows of all ranks, in their order, make."""
        return StepShape(rows[0].step, tuple(row.num_tokens for row in rows), all(row.wants_graph for row in rows))
