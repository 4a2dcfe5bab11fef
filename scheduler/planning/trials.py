"""Whether launches propose: what pays by the costs that are known, and now and then a trial of what does not.

    settle --the other way's turn has come--> trial --TRIAL launches--> settle
       '--the other way gives MARGIN more tokens a second: it is taken from now on--'

Launches that propose nothing have their turn soon, if they were never timed: they may be faster than at the start.
Proposals that lose by the costs of the start wait as those that have lost in a trial. Each trial that changes nothing
doubles the wait for the next one. What loses more waits longer.
"""

from dataclasses import dataclass
from typing import Final

SETTLE: Final = 8  # launches with proposals before others are timed for the first time
TRIAL: Final = 8  # launches in a row: the first two are not timed, as the ones before them are of another kind
FIRST_WAIT: Final = 512  # launches between two trials
LONGEST_WAIT: Final = 8192
MARGIN: Final = 1.03  # a change costs something, too


@dataclass(frozen=True)
class Rates:
    """Tokens a second of the best launches that propose something, and of those that propose nothing; and whether quiet
    ones of this size were timed. `may_try`: so many rows have a draft that a trial of proposals tells how many are
    kept."""

    proposing: float
    quiet: float
    quiet_known: bool
    may_try: bool = True


@dataclass(eq=False)
class Trials:
    """Decides for launches of one size, launch by launch."""

    proposes: bool = True  # what pays, as far as it is known
    _since: int = 0  # launches since the last trial or change
    _wait: int = FIRST_WAIT
    _left: int = 0  # launches of the trial
    has_tried: bool = False

    @property
    def is_trying(self) -> bool:
        """Whether the next launch goes on with a trial."""
        return self._left > 0

    def retry(self) -> None:
        """If nothing is proposed, the next launch that may try proposals does."""
        if not self.proposes:
            self._since = LONGEST_WAIT * LONGEST_WAIT

    def next(self, rates: Rates) -> bool:
        """Whether the next launch proposes something."""
        if self._left:
            self._left -= 1
            return not self.proposes

        here, there = (rates.proposing, rates.quiet) if self.proposes else (rates.quiet, rates.proposing)
        if there > MARGIN * here:
            self.proposes, self._since, self._wait = not self.proposes, 0, FIRST_WAIT
            return self.proposes

        self._since += 1
        is_first = self.proposes and not rates.quiet_known and not self.has_tried
        wait = SETTLE if is_first else self._wait * max(1.0, here / there)
        if self._since > wait and (self.proposes or rates.may_try):
            self._wait = min(2 * self._wait, LONGEST_WAIT) if self.has_tried else self._wait
            self._since, self._left, self.has_tried = 0, TRIAL - 1, True
            return not self.proposes
        return self.proposes
