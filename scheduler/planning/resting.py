"""Whether the draft rests: no prompt begins with one, so that launches are plain and cost what they do without a draft.

    awake --LOST launches' time was lost--> resting --the rest was long enough, and proposals would pay--> awake
                                               '--a trial: after RARE times as long, whatever is known--^

What is lost or saved is the time of a launch beside the plain launches that draw as many tokens. Savings count up to
CREDIT launches, so that old ones do not pay for a load that loses. A rest is long enough when the loss is ALLOWED of
its time. So whatever costs and loads are, little more than this share is ever lost. The first phase may lose a quarter
of LOST: a load for which the start says that proposals lose is left at once. A phase that never saved CREDIT doubles
what the next phase may lose, and so the rest behind it: rows with a draft come slowly where answers are long. What a
draft would have saved counts up to twice WORTH, so that a load that is over wakes nobody.

What the draft takes on prompts is owed: what launches save pays for it first. A load that owes PROMPTS times what one
of them has cost has prompts, and hardly any decodes.
"""

from dataclasses import dataclass
from typing import Final

LOST: Final = 4.0  # plain launches' time
FIRST: Final = 0.25  # of LOST: what the first phase may lose
PROMPTS: Final = 64  # whose drafts nothing has paid for
CREDIT: Final = 4.0  # plain launches' time
WORTH: Final = 8.0  # plain launches' time that a draft would have saved lately
ALLOWED: Final = 0.01
RARE: Final = 8
LONGEST: Final = 64  # times the loss and the time of the first rest


@dataclass(eq=False)
class Rest:
    """Decides launch by launch. Each method is given what a launch saves in seconds, and a plain one's seconds."""

    is_resting: bool = False
    is_over: bool = False  # a rest has ended, and proposals were not tried since: whoever tries them resets it
    _balance_s: float = 0.0  # awake: saved; resting: what a draft would have saved
    _has_paid: bool = False
    _rested_s: float = 0.0
    _due_s: float = 0.0  # the least time of this rest
    _factor: float = FIRST
    _owed_s: float = 0.0  # awake: for the draft's KV of prompts
    _dearest_s: float = 0.0  # of the prompts that are owed for

    def launched(self, saved_s: float, plain_s: float) -> None:
        """While awake: a launch that saves so much, or loses it."""
        paid_s = min(max(saved_s, 0.0), self._owed_s)
        self._owed_s -= paid_s
        self._balance_s = min(self._balance_s + saved_s - paid_s, CREDIT * plain_s)
        self._has_paid |= self._balance_s >= CREDIT * plain_s
        factor = 1 if self._has_paid else self._factor
        if self._balance_s < -LOST * factor * plain_s:
            self._begin(-self._balance_s, factor)

    def prompted(self, lost_s: float) -> None:
        """While awake: a launch of prompts, or of chunks of them, in which the draft took so long."""
        self._dearest_s = max(self._dearest_s if self._owed_s else 0.0, lost_s)
        self._owed_s += lost_s
        if self._owed_s > PROMPTS * self._dearest_s:
            self._begin(self._owed_s, self._factor)

    def _begin(self, lost_s: float, factor: float) -> None:
        self._due_s = lost_s / ALLOWED
        self._factor = min(2 * factor, LONGEST)
        self.is_resting, self.is_over, self._rested_s, self._balance_s, self._owed_s = True, False, 0.0, 0.0, 0.0

    def rested(self, would_save_s: float, plain_s: float) -> None:
        """While resting: a plain launch in whose place one with a draft would have saved so much, or lost it."""
        self._rested_s += plain_s
        self._balance_s = min(max(self._balance_s + would_save_s, 0.0), 2 * WORTH * plain_s)
        if self._rested_s < self._due_s:
            return
        would_pay = self._balance_s > WORTH * plain_s
        if would_pay or self._rested_s >= RARE * self._due_s:
            self.is_resting, self.is_over, self._balance_s, self._has_paid = False, True, 0.0, False

    def rested_prompt(self, would_lose_s: float, plain_s: float) -> None:
        """While resting: a prompt for which the draft would have taken so long. Only a launch ends the rest."""
        self._rested_s += plain_s
        self._balance_s = max(self._balance_s - would_lose_s, 0.0)
