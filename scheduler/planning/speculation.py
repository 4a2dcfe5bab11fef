"""Speculative decoding as the planner knows it: how many tokens a draft proposes, and how many of them were right.

With s proposals a launch verifies s + 1 tokens of each row: the last known one and the proposals. It keeps as many
proposals as equal what the target draws, and one more token, which the target draws after them. With measured costs the
number of proposals follows from them:

    (1 + acceptance of the first s proposals, summed) / seconds of a launch

is largest. A row without a draft draws one token in any launch. Whether anything is proposed follows from what launches
take in this worker (launch_costs.py, trials.py). A launch that proposes nothing still writes the draft's KV, or it
would have gaps. Where that costs more than it is worth, the draft rests (resting.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import accumulate
from operator import mul
from typing import Final

from runtime.clock import Clock
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.planning.launch_costs import PLAIN, LaunchCosts, StepCosts, size_of
from scheduler.planning.resting import Rest
from scheduler.planning.trials import MARGIN, TRIAL, Rates, Trials

FIRST_GUESS: Final = 0.8  # acceptance rate assumed for a position until launches have measured it
PRIOR: Final = 4  # so many verified proposals weigh as much as the first guess
SURE: Final = 256  # verified proposals that tell how good a draft is
MEMORY: Final = 0.98  # the weight of what was known, when one more proposal was verified
OVERHEAD: Final = 0.02  # of a plain launch: what a quiet one loses at least, though none may be measured
ENOUGH: Final = 0.5  # the share of rows with a draft whose proposals are tried
LOOK: Final = 64  # launches of a rest for which costs are looked up once
PROBE: Final = 256  # every so many launches that propose, a few propose one more, and then one fewer


def rates_of(acceptance: Sequence[float], launch_s: Sequence[float]) -> list[float]:
    """[s]: tokens a second of each row in launches with s proposals. `acceptance[i]`: how likely the first i + 1 are
    all kept. `launch_s[s]`: seconds of a launch."""
    return [num_tokens / seconds for num_tokens, seconds in zip(_lengths(acceptance), launch_s, strict=True)]


def _lengths(acceptance: Sequence[float]) -> list[float]:
    """[s]: tokens of each row in launches with s proposals."""
    return list(accumulate(acceptance, initial=1.0))


@dataclass(eq=False)
class Adaptive:
    """How many proposals pay. `clock` tells when results come, where the executor cannot tell when they were computed.
    None: costs stay as they were at the start, and the draft never rests."""

    costs: LaunchCosts
    clock: Clock | None = None
    rest: Rest = field(init=False, default_factory=Rest)
    _trials: dict[int, Trials] = field(init=False, default_factory=dict)  # by size
    _num_proposing: int = field(init=False, default=0)  # launches
    _tried: int = field(init=False, default=0)  # proposals of the last launch that had some
    _num_resting: int = field(init=False, default=0)  # launches
    _would_save: dict[int, tuple[float, float]] = field(init=False, default_factory=dict)  # by rows; see Rest.rested

    def over(self, rows: Sequence[object], kind: int, computed_at: float | None) -> None:
        """A launch is over; see LaunchCosts.over."""
        if self.clock is not None:
            self.costs.over(rows, kind, self.clock.now() if computed_at is None else computed_at)

    def next_steps(self, num_rows: int, share: float, acceptance: Sequence[float]) -> int:
        """Proposals for each of so many rows, of which this share has a draft, while the draft does not rest."""
        launch_s, plain_s = self.costs.launch_s(num_rows), self.costs.plain_s(num_rows)
        acceptance = [share * likely for likely in acceptance]
        rates = rates_of(acceptance, launch_s)
        best = max(range(1, len(rates)), key=rates.__getitem__)
        trials = self._trials.setdefault(size_of(num_rows), Trials(proposes=rates[best] * plain_s > 1.0))
        if self.rest.is_over and share >= ENOUGH:
            self.rest.is_over = False
            trials.retry()

        num_steps, goes_on = 0, trials.is_trying  # with as many proposals, so that launches of one kind are timed
        if trials.next(self._rates(num_rows, rates[best], plain_s, share)):
            num_steps = self._tried = self._tried if goes_on else self._proposed(best, len(rates) - 1)
        if self.clock is not None:
            quiet_s = min(plain_s - launch_s[0], -OVERHEAD * plain_s)
            saved_s = _lengths(acceptance)[num_steps] * plain_s - launch_s[num_steps] if num_steps else quiet_s
            self.rest.launched(saved_s, plain_s)
        return num_steps

    def _rates(self, num_rows: int, proposing: float, plain_s: float, share: float) -> Rates:
        """What is known of launches of so many rows."""
        quiet_known = self.clock is None or any(self.costs.is_known(num_rows, kind) for kind in (0, PLAIN))
        return Rates(proposing, 1.0 / plain_s, quiet_known, may_try=share >= ENOUGH)

    def _proposed(self, best: int, most: int) -> int:
        self._num_proposing += 1
        return min(max(1, best + self._probe), most)

    def _would(self, num_rows: int, acceptance: Sequence[float], plain_s: float) -> float:
        """The seconds that a launch of so many rows would save with a draft."""
        launch_s = self.costs.launch_s(num_rows)
        rates = rates_of(acceptance, launch_s)
        best = max(range(1, len(rates)), key=rates.__getitem__)
        pays = rates[best] * plain_s > MARGIN
        return _lengths(acceptance)[best] * plain_s - launch_s[best] if pays else -OVERHEAD * plain_s

    def go_on_resting(self, num_rows: int, acceptance: Callable[[], Sequence[float]]) -> None:
        """A plain launch while the draft rests. What is known of others hardly changes meanwhile."""
        self._num_resting += 1
        if self._num_resting % LOOK == 0:
            self._would_save.clear()
        if num_rows not in self._would_save:
            plain_s = self.costs.plain_s(num_rows)
            self._would_save[num_rows] = self._would(num_rows, acceptance(), plain_s), plain_s
        self.rest.rested(*self._would_save[num_rows])

    def read_prompts(self, num_tokens: int) -> None:
        """A launch computes so many tokens of prompts. While the draft does not rest, it reads them, too."""
        if self.clock is None:
            return
        plain_s, drafting_s = (num_tokens * token_s for token_s in self.costs.at_start.prompt_token_s)
        lost_s = max(0.0, drafting_s - plain_s)
        if self.rest.is_resting:
            self.rest.rested_prompt(lost_s, plain_s)
        else:
            self.rest.prompted(lost_s)

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
    rests: bool = field(init=False, default=False)  # no row has a draft, and none begins with one; see resting.py
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

    def _hoped(self) -> list[float]:
        """The same while nothing is proposed: what was kept lately, or in all launches, if that was more. A few texts
        prove nothing: until SURE proposals were verified, it is the first guess at least."""
        of_all = [kept / max(seen, 1) for kept, seen in zip(self.accepted, self.proposed, strict=True)]
        if self.proposed[0] < SURE:
            of_all = [FIRST_GUESS ** (place + 1) for place in range(len(of_all))]
        return list(map(max, self.acceptance, of_all))

    def most_tokens(self, num_rows: int) -> int:
        """Tokens that the next launch computes of so many rows at most: with a draft, all that it verifies of each. The
        first launch behind a rest has no row with a draft."""
        return num_rows * (1 if self.rests else self.shape.num_computed)

    def next_steps(self, num_rows: int, num_drafting: int, num_prompt_tokens: int = 0) -> int:
        """Proposals for each of `num_rows` rows in the next launch. Only the `num_drafting` with a draft keep some. The
        launch computes `num_prompt_tokens` of prompts, too. The draft's rest may begin or end with it."""
        if self._adaptive is None:
            return self.shape.num_steps if num_drafting else 0

        num_steps = 0
        if num_prompt_tokens:
            self._adaptive.read_prompts(num_prompt_tokens)
        if num_rows and self._adaptive.rest.is_resting:
            self._adaptive.go_on_resting(num_rows, self._hoped)
        elif num_drafting:
            num_steps = self._adaptive.next_steps(num_rows, num_drafting / num_rows, self.acceptance)
        self.rests = self._adaptive.rest.is_resting
        return 0 if self.rests else num_steps

    def over(self, rows: Sequence[object], kind: int, computed_at: float | None = None) -> None:
        """A launch is over, computed at `computed_at` if that is known; see LaunchCosts.over. Called for every launch,
        in their order."""
        if self._adaptive is not None:
            self._adaptive.over(rows, kind, computed_at)

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
