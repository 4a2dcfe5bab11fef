"""Strategies decide when simulated streams run what is queued. Each takes its decisions from a seed.

The streams themselves keep to the declared waits. A strategy decides everything else, without seeing the queued items.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar


class Strategy(StrEnum):
    """When things run. A wait is always kept; everything else is up to the strategy."""

    IN_ORDER = "in-order"  # at once, and the schedule stream before them: the control
    LATE = "late"  # only when the host waits, or nothing else is left to do
    EARLY = "early"  # at once, and the schedule stream only when waited for
    EARLY_LATE_COPIES = "early-late-copies"  # the same, but results reach the host only when it waits for them
    RANDOM = "random"  # any number of things after any call
    RANKED = "ranked"  # host and streams have ranks, which change now and then; who can run and ranks highest does
    EXHAUSTIVE = "exhaustive"  # as a list of decisions says


class Queue(Protocol):
    """A simulated stream, as far as decisions know it."""

    @property
    def is_copy_next(self) -> bool:
        """Whether what would run next is a copy to the host."""
        ...


Q = TypeVar("Q", bound=Queue)


class Decisions:
    """What a strategy decides, point by point. This one runs nothing before it is forced."""

    def pick(self, ready: Sequence[Q], rng: random.Random) -> Q:
        """Which of several queues goes on."""
        return ready[0] if len(ready) == 1 else rng.choice(ready)

    def more(self, queue: Queue) -> bool:
        """Whether `queue` runs one more thing now. Asked at every point, until it says no or nothing can run."""
        return False


@dataclass(frozen=True)
class Always(Decisions):
    """As much as can run; copies only if `copies`."""

    copies: bool = True

    def more(self, queue: Queue) -> bool:
        """Yes, but for copies."""
        return self.copies or not queue.is_copy_next


@dataclass
class Random(Decisions):
    """Even odds at every point."""

    rng: random.Random

    def more(self, queue: Queue) -> bool:
        """A coin."""
        return self.rng.random() < 0.5


HOST = object()
CHANGES = 1 / 60  # of ranks, per question: a stream starves for a while, but not for ever


@dataclass
class Ranked(Decisions):
    """Who ranks below the host waits until it is idle; who ranks below another stream waits for that one too. Finds
    what a coin seldom finds: one worker's launch that stays behind while everybody else goes a long way."""

    rng: random.Random
    ranks: dict[object, float] = field(default_factory=dict)

    def pick(self, ready: Sequence[Q], rng: random.Random) -> Q:
        """The highest."""
        return max(ready, key=self._rank)

    def more(self, queue: Queue) -> bool:
        """Whether it ranks above the host."""
        if self.rng.random() < CHANGES and self.ranks:
            self.ranks[self.rng.choice(list(self.ranks))] = self.rng.random()
        return self._rank(queue) > self._rank(HOST)

    def _rank(self, who: object) -> float:
        return self.ranks.setdefault(who, self.rng.random())


@dataclass
class Listed(Decisions):
    """Follows `decisions`, then never; `num_asked` tells how many there were to take."""

    decisions: Sequence[bool]
    num_asked: int = 0

    def more(self, queue: Queue) -> bool:
        """The next one."""
        at, self.num_asked = self.num_asked, self.num_asked + 1
        return at < len(self.decisions) and self.decisions[at]


def next_decisions(decisions: Sequence[bool], num_asked: int, limit: int) -> list[bool] | None:
    """The schedule to try after `decisions` (depth first, at most `limit` decisions deep); None when all were tried."""
    tried = [*decisions, *[False] * num_asked][: min(num_asked, limit)]
    while tried and tried[-1]:
        tried.pop()
    return [*tried[:-1], True] if tried else None


def decisions_of(strategy: Strategy, rng: random.Random) -> Decisions:
    """The decisions of `strategy`, drawn from `rng`."""
    if strategy is Strategy.RANDOM:
        return Random(rng)
    if strategy is Strategy.RANKED:
        return Ranked(rng)
    if strategy is Strategy.EXHAUSTIVE:
        return Listed(())
    return Decisions() if strategy is Strategy.LATE else Always(copies=strategy is not Strategy.EARLY_LATE_COPIES)
