"""What choices gain piece by piece: texts with their tokens, and tokens with their log-probabilities."""

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


class Piece(NamedTuple):
    """What the tokens of one delivery add. Text is held back while a character is incomplete or may begin a stop
    string."""

    text: str
    token_ids: tuple[int, ...]  # empty: only a finish reason
    finish_reason: str | None
    logprobs: Collection[ScoredToken] = ()  # of the tokens whose text is shown with this piece, if they are asked for
    scores: tuple[TokenLogprob, ...] = ()  # of `token_ids`, each, if they are asked for
