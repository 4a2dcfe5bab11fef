"""What a request changes in its logits, and which rules no request may have. model/logit_rules.py has the formulas."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated, Final

from pydantic import FailFast

from protocol.message import Int, Ints, Message, Number

MAX_PENALTY: Final = 2.0
MIN_REPETITION_PENALTY: Final = 0.01  # a lower one might make a logit infinite
MAX_BIAS: Final = 100.0
Bias = tuple[Int, Number]  # (token, what is added to its logit)


@dataclass(frozen=True)
class LogitRules(Message):
    """The rules of one request. The gateway checks numbers and ids; a worker checks them again."""

    frequency_penalty: Number = 0.0  # 0: off; at most MAX_PENALTY, also below 0
    presence_penalty: Number = 0.0  # as above
    repetition_penalty: Number = 1.0  # 1: off; MIN_REPETITION_PENALTY to MAX_PENALTY
    logit_bias: Annotated[tuple[Bias, ...], FailFast()] = ()
    allowed_token_ids: Ints = ()  # none: all
    bad_words: Annotated[tuple[Ints, ...], FailFast()] = ()  # each a token or several, one behind the other

    @cached_property
    def penalises(self) -> bool:
        """Whether there is a penalty."""
        return (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) != (0, 0, 1)

    @cached_property
    def reads_context(self) -> bool:
        """Whether a rule depends on the tokens before."""
        return self.penalises or any(len(word) > 1 for word in self.bad_words)

    @property
    def may_forbid(self) -> frozenset[int]:
        """Tokens that a bad word may forbid: the last of each."""
        return frozenset(word[-1] for word in self.bad_words if word)


NO_RULES: Final = LogitRules()


def rules_fault(rules: LogitRules, ending_ids: Iterable[int], vocab_size: int) -> tuple[str, ...] | None:
    """The first field that is wrong, and why; or None. The reason is a text, or texts with names of fields between
    them: (field, text, name, text). `ending_ids`: what may not be drawn at first (min_tokens).

    Rules that might forbid every token are refused: no token could be drawn.
    """
    for name in ("frequency_penalty", "presence_penalty"):
        value = getattr(rules, name)
        if not -MAX_PENALTY <= value <= MAX_PENALTY:
            return name, f"got {value}, expected {-MAX_PENALTY:g} to {MAX_PENALTY:g}"
    least = MIN_REPETITION_PENALTY
    if not least <= rules.repetition_penalty <= MAX_PENALTY:
        return "repetition_penalty", f"got {rules.repetition_penalty}, expected {least:g} to {MAX_PENALTY:g}"
    for token, bias in rules.logit_bias:
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            return "logit_bias", f"got {bias} for token {token}, expected {-MAX_BIAS:g} to {MAX_BIAS:g}"

    ids = {
        "logit_bias": (token for token, _ in rules.logit_bias),
        "allowed_token_ids": rules.allowed_token_ids,
        "bad_words": chain.from_iterable(rules.bad_words),
    }
    for name, tokens in ids.items():
        for token in tokens:
            if not 0 <= token < vocab_size:
                return name, f"got token id {token}, expected ids in [0, {vocab_size})"
    if len(dict(rules.logit_bias)) < len(rules.logit_bias):
        return "logit_bias", "got a token twice, expected each once"
    if not all(rules.bad_words):
        return "bad_words", "got a word without tokens, expected at least one in each"
    return _nothing_left(rules, frozenset(ending_ids), vocab_size)


def _nothing_left(rules: LogitRules, ending_ids: frozenset[int], vocab_size: int) -> tuple[str, ...] | None:
    forbidden = rules.may_forbid | ending_ids
    if rules.allowed_token_ids:
        if not forbidden.issuperset(rules.allowed_token_ids):
            return None
        name = "allowed_token_ids"
    elif sum(0 <= token < vocab_size for token in forbidden) < vocab_size:
        return None
    else:
        name = "bad_words" if rules.bad_words else "stop_token_ids"
    why = ("leaves no token to draw beside ", "bad_words", ", and with ", "min_tokens", " beside what ends the choice")
    return name, *why
