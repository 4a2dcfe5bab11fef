"""Collectives of ranks that share one thread: each completes when all ranks have entered it, with the same tag.

    rank 0's stream   [compute: gather, exchange, ...] (wait for all) [sample] ...
    rank 1's stream   [resolve] [compute: ...

A segment cannot be stopped half-way, and what the fake model computes does not depend on other ranks. So the segment of
a rank runs to its end, and what follows it on the stream waits until every rank has entered the same collectives. Two
ranks that differ are told at once, by the tags of both. A rank that never comes is told by `missing`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from model.collectives import Collectives
from protocol.messages_group import StepShape
from scheduler.execution.streams import Event, Stream
from tests.doubles.streams_simulated import ScheduleViolation


class RankStream(Stream, Protocol):
    """The forward stream of a rank, as its group knows it."""

    @property
    def stands_at(self) -> str:
        """What would run next, or runs."""
        ...

    def report(self, found: str) -> None:
        """Within a segment: what is wrong, which the launch may catch. The test fails with it."""
        ...


class HeldStream(RankStream, Protocol):
    """One that can wait behind a segment."""

    def hold(self, event: Event) -> None:
        """Within a segment: what follows it on this stream runs after `event`."""
        ...


StreamT = TypeVar("StreamT", bound=RankStream)


@dataclass(frozen=True)
class Tag:
    """One call of one rank. `call` counts those of the step, from 0. `how`: all ranks compute a step in one way."""

    step: int
    call: int
    operation: str
    shape: tuple[int, ...]
    how: str

    def __str__(self) -> str:
        return f"{self.operation} {self.shape}, call {self.call} of step {self.step}, {self.how}"


@dataclass(eq=False)
class GroupLog(Generic[StreamT]):
    """What the ranks of one group have entered. `before_call` is called before each; it may raise."""

    size: int
    streams: list[StreamT] = field(default_factory=list)  # of the ranks that have joined
    logs: list[list[Tag]] = field(default_factory=list)  # by rank
    before_call: Callable[[int, Tag], None] = lambda rank, tag: None

    def join(self, forward: StreamT) -> Collectives:
        """The collectives of the next rank, whose forwards run on this stream."""
        raise NotImplementedError

    def seat(self, forward: StreamT) -> int:
        """The number of the next rank."""
        self.streams.append(forward)
        self.logs.append([])
        return len(self.logs) - 1

    def end(self) -> None:
        """The processes of all ranks are killed."""

    def note(self, rank: int, operation: str, given: Tensor, step: StepShape) -> int:
        """A rank enters its next collective. Its place in the log. ScheduleViolation if another rank is elsewhere."""
        log, place = self.logs[rank], len(self.logs[rank])
        how = "by a graph" if step.graphs else "eagerly"
        tag = Tag(step.step, self.num_calls(rank, step.step), operation, tuple(given.shape), how)
        self.before_call(rank, tag)
        log.append(tag)
        for other, theirs in enumerate(self.logs):
            if len(theirs) > place and theirs[place] != tag:
                found = f"rank {rank} enters {tag}; rank {other} has entered {theirs[place]}"
                self.streams[rank].report(found)
                raise ScheduleViolation(found)
        return place

    def num_calls(self, rank: int, step: int) -> int:
        """How many collectives of the step, its newest one, the rank has entered."""
        return sum(1 for _ in takewhile(lambda tag: tag.step == step, reversed(self.logs[rank])))

    def missing(self) -> str:
        """Who has not entered what others have; "" if all ranks have entered the same."""
        longest = max(self.logs, key=len)
        late = [rank for rank, log in enumerate(self.logs) if len(log) < len(longest)]
        where = [(longest[len(self.logs[rank])], self.streams[rank].stands_at) for rank in late]
        said = [
            f"rank {rank} has not entered {tag}: it is at {at}" for rank, (tag, at) in zip(late, where, strict=True)
        ]
        return "; ".join(said)


class SimulatedGroup(GroupLog[HeldStream]):
    """A group of ranks in one thread."""

    def join(self, forward: HeldStream) -> "SimulatedCollectives":
        """See GroupLog."""
        return SimulatedCollectives(self.seat(forward), self.size, self)

    def enter(self, rank: int, operation: str, given: Tensor, step: StepShape) -> None:
        """A rank enters its next collective. Its stream waits behind the segment for all others."""
        place = self.note(rank, operation, given, step)
        self.streams[rank].hold(Entered(self, place))


@dataclass(frozen=True)
class Entered:
    """All ranks have entered the collective at this place of their logs."""

    group: SimulatedGroup
    place: int

    @property
    def tag(self) -> Tag:
        """The collective."""
        return next(log[self.place] for log in self.group.logs if len(log) > self.place)

    def __str__(self) -> str:
        return f"other ranks in {self.tag}"

    def done(self) -> bool:
        """Whether they have."""
        return all(len(log) > self.place for log in self.group.logs)

    def synchronize(self) -> None:
        """Only streams wait for it."""
        raise AssertionError(f"the host waits for {self}")


@dataclass(eq=False)
class SimulatedCollectives:
    """Collectives, as one rank has them. Each rank gets its own numbers from every rank: the fake reads no others."""

    rank: int
    size: int
    group: SimulatedGroup

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """(R, P, E)."""
        self.group.enter(self.rank, "gather", own_PE, step)
        return torch.stack([own_PE] * self.size)

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """(R, P, E)."""
        self.group.enter(self.rank, "exchange", parts_RPE, step)
        return torch.stack([parts_RPE[self.rank]] * self.size)
