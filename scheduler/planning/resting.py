"""Whether the draft rests: no prompt begins with one, so that launches are plain and cost what they do without a draft.

    awake --LOST launches' time was lost--> resting --the rest was long enough, and proposals would pay--> awake
                                               '--a trial: after RARE times as long, whatever is known--^

What is lost or saved is the time of a launch beside the plain launches that draw as many tokens. Savings count up to
CREDIT launches, so that old ones do not pay for a load that loses. A rest is long enough when the loss is ALLOWED of
its time. So whatever costs and loads are, little more than this share is ever lost. A phase that never saved CREDIT
doubles what the next phase may lose, and so the rest behind it: rows with a draft come slowly where answers are long.
What a draft would have saved counts up to twice WORTH, so that a load that is over wakes nobody.
"""

from dataclasses import dataclass
from typing import Final

LOST: Final = 4.0  # plain launches' time
CREDIT: Final = 4.0  # plain launches' time
WORTH: Final = 8.0  # plain launches' time that a draft would have saved lately
ALLOWED: Final = 0.01
RARE: Final = 8
LONGEST: Final = 64  # times the loss and the time of the first rest


@dataclass(eq=False)
class Rest:
    """Decides launch by launch. Each method is given what a launch saves in seconds, and a plain one's seconds."""

    is_resting: bool = False
    _balance_s: float = 0.0  # awake: saved; resting: what a draft would have saved
    _has_paid: bool = False
    _rested_s: float = 0.0
    _due_s: float = 0.0  # the least time of this rest
    _factor: int = 1

    def launched(self, saved_s: float, plain_s: float) -> None:
        """While awake: a launch that saves so much, or loses it."""
        self._balance_s = min(self._balance_s + saved_s, CREDIT * plain_s)
        self._has_paid |= self._balance_s >= CREDIT * plain_s
        factor = 1 if self._has_paid else self._factor
        if self._balance_s >= -LOST * factor * plain_s:
            return
        self._due_s = -self._balance_s / ALLOWED
        self._factor = min(2 * factor, LONGEST)
        self.is_resting, self._rested_s, self._balance_s = True, 0.0, 0.0

    def rested(self, would_save_s: float, plain_s: float) -> None:
        """While resting: a plain launch, in whose place one with a draft would have saved so much, or lost it."""
        self._rested_s += plain_s
        self._balance_s = min(max(self._balance_s + would_save_s, 0.0), 2 * WORTH * plain_s)
        if self._rested_s < self._due_s:
            return
        would_pay = self._balance_s > WORTH * plain_s
        if would_pay or self._rested_s >= RARE * self._due_s:
            self.is_resting, self._balance_s, self._has_paid = False, 0.0, False
