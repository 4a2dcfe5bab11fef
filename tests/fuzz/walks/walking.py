"""Walks one answer: tokens drawn at random from the masks that a worker would use, until the answer ends.

    random tokens, `num_free` of them --> tokens that bring the answer to its end     at most MAX_STEPS in all

Shapes: V tokens of the model, A tokens that may follow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.grammars import CompiledGrammar, Matching
from runtime.vocabulary import Vocabulary

MAX_STEPS: Final = 400
P_STRAY: Final = 0.1  # of tokens drawn at random while an answer is brought to its end
Numbers = npt.NDArray[np.int64]

# How near to the end of an answer a token leads, by its first byte: the smaller, the nearer.
_RANKS: Final = ((b'"}]', 1), (b",", 2), (b":", 3), (b"0123456789", 4), (b"-", 6), (b"{[", 7), (b".eE+", 8))
_RANK_OF_OTHERS: Final = 5
_RANK_OF_SPACES: Final = 9  # and of backslashes


@dataclass(frozen=True)
class Style:
    """How a walk draws. `narrow`: which of the tokens that may follow it draws from, by their lengths, for its first
    `num_free` tokens. For `num_more` further ones it goes on with a comma where one may follow."""

    name: str
    num_free: int
    narrow: Callable[[Numbers], npt.NDArray[np.bool_]]
    num_more: int = 0


STYLES: Final = (
    Style("short", 0, lambda lengths_A: lengths_A >= 0),
    Style("any", 12, lambda lengths_A: lengths_A >= 0),
    Style("bytes", 30, lambda lengths_A: lengths_A == lengths_A.min()),
    Style("longest", 10, lambda lengths_A: lengths_A == lengths_A.max()),
    Style("long", 60, lambda lengths_A: lengths_A >= 0),
    Style("commas", 0, lambda lengths_A: lengths_A >= 0, num_more=80),
)


@dataclass(frozen=True)
class Walk:
    """One walk. `fault`: why it could not go on; "" if it could. Neither a fault nor an end: it was too long."""

    answer: bytes
    has_ended: bool = False
    fault: str = ""


class Walker:
    """Walks answers of one vocabulary, whose answers end with `eos`."""

    def __init__(self, vocabulary: Vocabulary, eos: int) -> None:
        self._vocabulary, self._eos = vocabulary, eos
        self._lengths_V: Numbers = np.array([len(token) for token in vocabulary.tokens], dtype=np.int64)
        ranks = [_rank(token) for token in vocabulary.tokens]
        ranks[eos] = 0
        self._ranks_V: Numbers = np.array(ranks, dtype=np.int64)
        self._is_comma_V = np.array([token[:1] == b"," for token in vocabulary.tokens])

    def walk(self, grammar: CompiledGrammar, style: Style, rng: Random) -> Walk:
        """One answer of a grammar."""
        matching, answer = grammar.begin((self._eos,)), b""
        for step in range(MAX_STEPS):
            tokens_A = self._may_follow(matching)
            if matching.fault or not len(tokens_A):
                return Walk(answer, fault=matching.fault or "the mask allows no token")

            token = self._drawn(tokens_A, style, step, rng)
            matching.read([token])
            if matching.fault:
                return Walk(answer + self._vocabulary.tokens[token], fault=matching.fault)
            if matching.is_over:
                return Walk(answer, has_ended=True)
            answer += self._vocabulary.tokens[token]
        return Walk(answer)

    def _drawn(self, tokens_A: Numbers, style: Style, step: int, rng: Random) -> int:
        if step < style.num_free:
            others_A = tokens_A[tokens_A != self._eos]  # an answer that may end goes on as long as it can
            wanted = others_A[style.narrow(self._lengths_V[others_A])] if len(others_A) else tokens_A
        elif rng.random() < P_STRAY:
            wanted = tokens_A
        elif step < style.num_free + style.num_more and self._is_comma_V[tokens_A].any():
            wanted = tokens_A[self._is_comma_V[tokens_A]]
        else:
            ranks_A = self._ranks_V[tokens_A]
            wanted = tokens_A[ranks_A == ranks_A.min()]
        return int(wanted[rng.randrange(len(wanted))])

    def _may_follow(self, matching: Matching) -> Numbers:
        bits = np.unpackbits(matching.mask().view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: self._vocabulary.num_tokens])


def _rank(token: bytes) -> int:
    if token[:1] in (b"", b"\\") or token[:1].isspace():
        return _RANK_OF_SPACES
    return next((rank for firsts, rank in _RANKS if token[0] in firsts), _RANK_OF_OTHERS)
