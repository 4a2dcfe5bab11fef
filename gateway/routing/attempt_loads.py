"""The load of each worker as its attempts make it: what an attempt counts for there, from its begin to its end."""

from gateway.routing.pairing import NO_LOAD, Loads, Pair, decode_load, one_choice_less, prefill_load
from gateway.routing.requests import Attempt


class AttemptLoads(Loads):
    """Loads that attempts add to and take away from. Each attempt remembers what it counts for."""

    def begin(self, attempt: Attempt, pair: Pair) -> None:
        """The workers of `pair` have got the attempt."""
        attempt.decode_load = decode_load(attempt.need, pair.decode)
        self.add(attempt.decode, attempt.decode_load)
        if pair.prefill is not None:
            attempt.prefill_load = prefill_load(attempt.need, pair.prefill)
            self.add(pair.prefill.key, attempt.prefill_load)

    def first_token(self, attempt: Attempt) -> None:
        """Tokens have come, so the prefill worker has computed the prompt. A second call does nothing."""
        if attempt.prefill is not None and attempt.prefill_load.rows:
            self.add(attempt.prefill, attempt.prefill_load, -1)
            attempt.prefill_load = NO_LOAD

    def one_choice_less(self, attempt: Attempt) -> None:
        """One of the attempt's choices goes on elsewhere."""
        rest = one_choice_less(attempt.decode_load, attempt.need)
        self.add(attempt.decode, attempt.decode_load, -1)
        self.add(attempt.decode, rest)
        attempt.decode_load = rest

    def end(self, attempt: Attempt) -> None:
        """The attempt is over."""
        self.first_token(attempt)
        self.add(attempt.decode, attempt.decode_load, -1)
