"""Which prefixes many requests have in common, and when another prefill worker learns one.

A request goes where its prefix is cached. So requests with one prefix would all go to one worker, and no other worker
would ever learn the prefix. Learning costs a worker the prefix's tokens, once. Therefore a prefix runs up a debt while
the worker that has it does more than its part, and the debt is taken off what the prefix costs the others.

Example: requests with a prefix of 1,800 tokens compute 32 more, and a launch counts for 256. The prefix owes 288 tokens
for each, and after seven of them another worker learns it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.routing.members import WorkerKey
from protocol.prefixes import STRIDE

LAUNCH_TOKENS: Final = 256  # a forward reads all weights, which takes about as long as computing so many tokens
BUSIER: Final = 1.25  # a worker that has done so many times the mean does more than its part
WINDOW: Final = 32  # recent work is that of about so many requests of each worker
MOST_DEBTS: Final = 4096  # prefixes that owe something; the one that was used longest ago is forgotten


class HotPrefixes:
    """The recent work of prefill workers and the debts of prefixes, both in tokens. Pure.

    Its methods take `prefixes`, the hashes of a prompt's prefixes, and `held`: how many tokens of that prompt each
    worker that may take it has cached.
    """

    def __init__(self) -> None:
        self._work: dict[WorkerKey, float] = {}
        self._debts: dict[bytes, float] = {}  # by the prefix's hash; the last used is the last

    def discounts(self, held: Mapping[WorkerKey, int], prefixes: Sequence[bytes]) -> Mapping[WorkerKey, float]:
        """What to take off the cost of each worker that lacks the prefix."""
        most = max(held.values(), default=0)
        debt = self._debts.get(_name(most, prefixes), 0.0)
        return {key: debt for key, num_tokens in held.items() if debt and num_tokens < most}

    def note(self, taken: WorkerKey, num_tokens: int, held: Mapping[WorkerKey, int], prefixes: Sequence[bytes]) -> None:
        """The worker `taken` has got the request and computes `num_tokens` tokens for it."""
        work = num_tokens + LAUNCH_TOKENS
        kept = 1 - 1 / (WINDOW * len(held))
        self._work = {key: kept * recent for key, recent in self._work.items() if recent >= 1}
        self._work[taken] = self._work.get(taken, 0.0) + work

        most = max(held.values())
        debt = self._debts.pop(_name(most, prefixes), 0.0)
        if not most or held[taken] < most:
            return  # nobody has a prefix of it, or the debt is paid: this worker learns the prefix now

        mean = sum(self._work.get(key, 0.0) for key in held) / len(held)
        if self._work[taken] > BUSIER * mean:
            debt += work
        if debt:
            self._debts[_name(most, prefixes)] = debt
        if len(self._debts) > MOST_DEBTS:
            del self._debts[next(iter(self._debts))]


def _name(num_tokens: int, prefixes: Sequence[bytes]) -> bytes:
    """The hash of the first `num_tokens` tokens; empty for none."""
    return prefixes[num_tokens // STRIDE - 1] if num_tokens else b""
