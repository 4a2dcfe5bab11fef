"""Grammars tried and matched byte by byte: for tests that know answers as texts, and no model."""

from typing import Any, Final

from llguidance import LLMatcher

from gateway.generation.grammars.checks import GrammarChecks
from gateway.generation.grammars.refused import GrammarRefused
from gateway.generation.grammars.trials import Trials
from gateway.words.request import Grammar
from protocol.errors import BadRequest
from runtime.grammar_limits import limits
from runtime.vocabulary import Vocabulary
from tests.doubles.clock import VirtualClock

END: Final = 256  # the token behind an answer
VOCABULARY: Final = Vocabulary([bytes([byte]) for byte in range(END)], frozenset())


def check(asked: Grammar) -> str | GrammarRefused:
    """The text of a grammar, or why it is refused; as the gateway's process for trials finds it."""
    return Trials(VOCABULARY, VirtualClock()).of(asked)


def checks() -> GrammarChecks:
    """What a gateway has, without a process of its own."""
    return GrammarChecks(check, VirtualClock())


def of_schema(schema: Any, *, compact: bool = False) -> str | BadRequest:
    """The grammar of a JSON schema, or why it is refused."""
    return check(Grammar("json", schema, compact))


def allows(found: str | BadRequest | LLMatcher, answer: str) -> bool:
    """Whether this is a whole answer of a grammar, which must not be refused."""
    assert not isinstance(found, BadRequest), found
    tokens = [*answer.encode(), END]
    matcher = matcher_of(found) if isinstance(found, str) else found.deep_copy()
    return bool(matcher.validate_tokens(tokens) == len(tokens))


def matcher_of(text: str) -> LLMatcher:
    """A grammar's own matcher. It reads bytes, then END."""
    return LLMatcher(VOCABULARY.tokenizer, text, log_level=0, limits=limits(text))
