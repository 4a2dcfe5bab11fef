"""Tokens of an answer with their log-probabilities, as dialects write them."""

from collections.abc import Collection
from typing import NamedTuple

from protocol.logprobs import TokenLogprob


class ScoredToken(NamedTuple):
    """A token of an answer, with its log-probability."""

    token_id: int
    offset: int  # characters of the choice's text before its own
    scored: TokenLogprob | None  # None: the first token of an echoed prompt, before which there is nothing


class SharedTokens(Collection[ScoredToken]):
    """Tokens with which all choices of one prompt begin. `is_shared`: there are several choices."""

    is_shared: bool
