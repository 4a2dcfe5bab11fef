"""Speculative decoding as the planner knows it: how many tokens a draft proposes, and how many of them were right.

With s proposals a launch verifies s + 1 tokens of each row: the last known one and the proposals. It keeps as many
proposals as equal what the target draws, and one more token, which the target draws after them. With measured costs the
number of proposals follows from them:

    (1 + acceptance of the first s proposals, summed) / seconds of a launch

is largest. Without proposals the draft still writes its KV, or it would have gaps.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Final

from scheduler.draft_shape import NO_DRAFT, DraftShape

FIRST_GUESS: Final = 0.8  # acceptance rate assumed for a position until launches have measured it
PRIOR: Final = 4  # so many verified proposals weigh as much as the first guess
MEMORY: Final = 0.98  # the weight of what was known, when one more proposal was verified
PROBE: Final = 64  # every so many launches one proposal more is tried: its acceptance may have changed


@dataclass(frozen=True)
class StepCosts:
    """Seconds of launches, as measured at the start: seconds[i][s] of num_rows[i] rows with s proposals each."""

    num_rows: tuple[int, ...]  # ascending
    seconds: tuple[tuple[float, ...], ...]

    def launch_s(self, num_rows: int) -> list[float]:
        """[s]: a launch of so many rows with s proposals each, on the line through the two nearest sizes. One that
        proposes more never takes less: what was measured may have been disturbed."""
        if len(self.num_rows) == 1:
            return list(accumulate(self.seconds[0], max))
        right = min(max(1, bisect_left(self.num_rows, num_rows)), len(self.num_rows) - 1)
        start, end = self.num_rows[right - 1 : right + 1]
        part = (num_rows - start) / (end - start)
        lines = zip(*self.seconds[right - 1 : right + 1], self.seconds[0], strict=True)
        return list(accumulate((max(low + part * (high - low), least) for low, high, least in lines), max))


def best_steps(acceptance: Sequence[float], launch_s: Sequence[float]) -> int:
    """How many proposals give most tokens a second. `acceptance[i]`: how likely the first i + 1 are all kept.
    `launch_s[s]`: seconds of a launch with s proposals."""
    return max(range(len(launch_s)), key=lambda steps: (1 + sum(acceptance[:steps])) / launch_s[steps])


@dataclass(eq=False)
class Speculation:
    """How many tokens the executor's draft proposes: at most those of `shape`, and without `costs` always so many.
    `hidden_size`: numbers of the hidden states with which a draft begins. Of trees, costs decide nothing."""

    shape: DraftShape
    hidden_size: int
    costs: StepCosts | None = None
    proposed: list[int] = field(init=False)  # [i]: rows for which a proposal i was verified, in all launches
    accepted: list[int] = field(init=False)  # [i]: of these, rows whose first i + 1 proposals were kept
    _seen: list[float] = field(init=False)  # [i]: proposals i behind kept ones, lately
    _kept: list[float] = field(init=False)  # [i]: those that were kept
    _num_launches: int = field(init=False, default=0)
    _launch_s: tuple[int, list[float]] = field(init=False, default_factory=lambda: (0, []))  # of a number of rows

    def __post_init__(self) -> None:
        num_steps = self.shape.num_steps
        self.proposed, self.accepted = [0] * num_steps, [0] * num_steps
        self._seen, self._kept = [float(PRIOR)] * num_steps, [FIRST_GUESS * PRIOR] * num_steps

    @staticmethod
    def without_draft() -> "Speculation":
        """Nothing is ever proposed."""
        return Speculation(NO_DRAFT, 0)

    @property
    def has_draft(self) -> bool:
        """Whether the executor has a draft."""
        return self.hidden_size > 0

    @property
    def acceptance(self) -> list[float]:
        """[i]: how likely the first i + 1 proposals are all kept, by what was kept lately."""
        return list(accumulate((kept / seen for kept, seen in zip(self._kept, self._seen, strict=True)), mul))

    def most_tokens(self, num_rows: int) -> int:
        """Tokens that the next launch computes of so many rows at most: with a draft, all that it verifies of each."""
        return num_rows * self.shape.num_computed

    def next_steps(self, num_rows: int) -> int:
        """Proposals for each of so many rows in the next launch."""
        if self.costs is None or not num_rows:
            return self.shape.num_steps if num_rows else 0
        self._num_launches += 1
        if self._launch_s[0] != num_rows:
            self._launch_s = num_rows, self.costs.launch_s(num_rows)
        best = best_steps(self.acceptance, self._launch_s[1])
        return min(best + 1, self.shape.num_steps) if self._num_launches % PROBE == 0 else best

    def count(self, num_steps: int, runs: Sequence[tuple[int, ...]]) -> None:
        """Counts what a launch with so many proposals has kept of them: a run has one token more."""
        reached = len(runs)  # rows whose proposals before this one were all kept
        for place in range(num_steps):
            kept = sum(len(run) > place + 1 for run in runs)
            self.proposed[place] += len(runs)
            self.accepted[place] += kept
            weight = MEMORY**reached
            self._seen[place] = weight * self._seen[place] + reached
            self._kept[place] = weight * self._kept[place] + kept
            reached = kept

    @property
    def counters(self) -> dict[str, float]:
        """For WorkerStats: proposals that were verified, and those that were kept, by position."""
        counters: dict[str, float] = {}
        for place, (proposed, accepted) in enumerate(zip(self.proposed, self.accepted, strict=True)):
            counters |= {f"spec_proposed_{place}": proposed, f"spec_accepted_{place}": accepted}
        return counters
