"""Whether launches propose: what pays by the costs that are known, and now and then a trial of what does not.

    settle --the other way was never timed, or its turn has come--> trial --TRIAL launches--> settle
       '--the other way gives MARGIN more tokens a second: it is taken from now on--'

Each trial that changes nothing doubles the wait for the next one. What loses more waits longer.
"""

from dataclasses import dataclass
from typing import Final

SETTLE: Final = 8  # launches of one way before the other one is timed for the first time
TRIAL: Final = 8  # launches in a row: the first two are not timed, as the ones before them are of another kind
FIRST_WAIT: Final = 512  # launches between two trials
LONGEST_WAIT: Final = 8192
MARGIN: Final = 1.03  # a change costs something, too


@dataclass(frozen=True)
class Rates:
    """Tokens a second of the best launches that propose something, and of those that propose nothing, and whether
    launches of this size were timed in that way."""

    proposing: float
    quiet: float
    proposing_known: bool
    quiet_known: bool


@dataclass(eq=False)
class Trials:
    """Decides for launches of one size, launch by launch."""

    proposes: bool = True  # what pays, as far as it is known
    _since: int = 0  # launches since the last trial or change
    _wait: int = FIRST_WAIT
    _left: int = 0  # launches of the trial
    _has_tried: bool = False

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
        is_known = rates.quiet_known if self.proposes else rates.proposing_known
        wait = self._wait * max(1.0, here / there) if is_known or self._has_tried else SETTLE
        if self._since > wait:
            self._wait = min(2 * self._wait, LONGEST_WAIT) if self._has_tried else self._wait
            self._since, self._left, self._has_tried = 0, TRIAL - 1, True
            return not self.proposes
        return self.proposes
