"""Grammars tried and matched byte by byte: for tests that know answers as texts, and no model."""

from typing import Final

from llguidance import LLMatcher

from gateway.grammar_checks import GrammarChecks
from gateway.grammar_trials import Trials
from gateway.grammars import Asked
from protocol.errors import BadRequest
from runtime.grammar_limits import limits
from runtime.vocabulary import Vocabulary
from tests.doubles.clock import VirtualClock

END: Final = 256  # the token behind an answer
VOCABULARY: Final = Vocabulary([bytes([byte]) for byte in range(END)], frozenset())


def check(asked: Asked) -> str | BadRequest:
    """The text of a grammar, or why it is refused; as the gateway's process for trials finds it."""
    return Trials(VOCABULARY, VirtualClock()).of(asked)


def checks() -> GrammarChecks:
    """What a gateway has, without a process of its own."""
    return GrammarChecks(check, VirtualClock())


def matcher_of(text: str) -> LLMatcher:
    """A grammar's own matcher. It reads bytes, then END."""
    return LLMatcher(VOCABULARY.tokenizer, text, log_level=0, limits=limits(text))
