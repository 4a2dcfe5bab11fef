"""Speculative decoding as the planner knows it: how many tokens a draft proposes, and how many of them were right.

With s proposals a launch verifies s + 1 tokens of each row: the last known one and the proposals. It keeps as many
proposals as equal what the target draws, and one more token, which the target draws after them. With measured costs the
number of proposals follows from them:

    (1 + acceptance of the first s proposals, summed) / seconds of a launch

is largest. Without proposals the draft still writes its KV, or it would have gaps. Whether anything is proposed follows
from what launches take in this worker (launch_costs.py, trials.py).
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from itertools import accumulate
from operator import mul
from typing import Final

from runtime.clock import Clock
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.planning.launch_costs import LaunchCosts, StepCosts, size_of
from scheduler.planning.trials import TRIAL, Rates, Trials

FIRST_GUESS: Final = 0.8  # acceptance rate assumed for a position until launches have measured it
PRIOR: Final = 4  # so many verified proposals weigh as much as the first guess
MEMORY: Final = 0.98  # the weight of what was known, when one more proposal was verified
PROBE: Final = 256  # every so many launches that propose, a few propose one more, and then one fewer


def rates_of(acceptance: Sequence[float], launch_s: Sequence[float]) -> list[float]:
    """[s]: tokens a second of each row in launches with s proposals. `acceptance[i]`: how likely the first i + 1 are
    all kept. `launch_s[s]`: seconds of a launch."""
    return [(1 + sum(acceptance[:steps])) / seconds for steps, seconds in enumerate(launch_s)]


@dataclass(eq=False)
class Adaptive:
    """How many proposals pay. `clock` tells when results come; None: costs stay as they were at the start."""

    costs: LaunchCosts
    clock: Clock | None = None
    _trials: dict[int, Trials] = field(init=False, default_factory=dict)  # by size
    _num_proposing: int = field(init=False, default=0)  # launches

    def over(self, rows: Sequence[object], num_steps: int) -> None:
        """A launch is over; see LaunchCosts.over."""
        if self.clock is not None:
            self.costs.over(rows, num_steps, self.clock.now())

    def next_steps(self, num_rows: int, acceptance: Sequence[float]) -> int:
        """Proposals for each of so many rows."""
        rates = rates_of(acceptance, self.costs.launch_s(num_rows))
        best = max(range(1, len(rates)), key=rates.__getitem__)
        is_timed = self.clock is not None
        known = [not is_timed or self.costs.is_known(num_rows, proposes=proposes) for proposes in (True, False)]
        size = size_of(num_rows)
        if size not in self._trials:
            self._trials[size] = Trials(proposes=rates[best] > rates[0])
        if not self._trials[size].next(Rates(rates[best], rates[0], *known)):
            return 0
        self._num_proposing += 1
        return min(max(1, best + self._probe), len(rates) - 1)

    @property
    def _probe(self) -> int:
        """Further proposals of this launch: a trial of one more, later of one fewer, and so on."""
        num_probes, phase = divmod(self._num_proposing, PROBE)
        if not num_probes or phase >= TRIAL:
            return 0
        return 1 if num_probes % 2 else -1


@dataclass(eq=False)
class Speculation:
    """How many tokens the executor's draft proposes: at most those of `shape`, and without `costs` always so many.
    With a `clock`, too, these costs are corrected by what launches take. `hidden_size`: numbers of the hidden states
    with which a draft begins. Of trees, costs decide nothing."""

    shape: DraftShape
    hidden_size: int
    costs: InitVar[StepCosts | None] = None
    clock: InitVar[Clock | None] = None
    proposed: list[int] = field(init=False)  # [i]: rows for which a proposal i was verified, in all launches
    accepted: list[int] = field(init=False)  # [i]: of these, rows whose first i + 1 proposals were kept
    _seen: list[float] = field(init=False)  # [i]: proposals i behind kept ones, lately
    _kept: list[float] = field(init=False)  # [i]: those that were kept
    _adaptive: Adaptive | None = field(init=False)  # None: the number of proposals is fixed

    def __post_init__(self, costs: StepCosts | None, clock: Clock | None) -> None:
        self._adaptive = None if costs is None else Adaptive(LaunchCosts(costs), clock)
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
        if not num_rows:
            return 0
        return self._adaptive.next_steps(num_rows, self.acceptance) if self._adaptive else self.shape.num_steps

    def over(self, rows: Sequence[object], num_steps: int) -> None:
        """A launch is over; see LaunchCosts.over. Called for every launch, in their order."""
        if self._adaptive is not None:
            self._adaptive.over(rows, num_steps)

    def count(self, num_steps: int, runs: Sequence[tuple[int, ...]]) -> None:
        """Counts what a launch with so many proposals has kept of them: a run has one token more."""
        reached = len(runs)  # rows whose proposals before this one were all kept
        for index in range(num_steps):
            kept = sum(len(run) > index + 1 for run in runs)
            self.proposed[index] += len(runs)
            self.accepted[index] += kept
            weight = MEMORY**reached
            self._seen[index] = weight * self._seen[index] + reached
            self._kept[index] = weight * self._kept[index] + kept
            reached = kept

    @property
    def counters(self) -> dict[str, float]:
        """For WorkerStats: proposals that were verified, and those that were kept, by position."""
        counters: dict[str, float] = {}
        for index, (proposed, accepted) in enumerate(zip(self.proposed, self.accepted, strict=True)):
            counters |= {f"spec_proposed_{index}": proposed, f"spec_accepted_{index}": accepted}
        return counters
