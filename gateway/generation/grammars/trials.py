"""Tries a grammar before any worker gets it: writes its text, compiles it, and walks random answers through it.

It compiles with the model's own vocabulary, and answers go through masks and reads, as at a worker. All of it is native
code that reads what a client sent, and such code may die. So gateway/generation/grammars/trial_process.py runs it.

Shapes: V tokens of the model, A tokens that may follow.
"""

import random
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from gateway.generation.grammars.calls import for_each_tool
from gateway.generation.grammars.refused import GrammarRefused, place_of
from gateway.generation.grammars.sentences import in_words
from gateway.generation.grammars.texts import text_of
from gateway.words.complaints import short
from gateway.words.request import Grammar
from protocol.errors import GrammarFault
from protocol.grammar import grammar_name
from runtime.clock import Clock
from runtime.grammars import CompiledGrammar, Matching, compile_grammar
from runtime.vocabulary import Vocabulary

MAX_STEPS: Final = 64  # tokens of a walk
WALKS_S: Final = 0.2  # of work, after which no further walk begins
TOOLS_S: Final = 1.5  # of work, after which no further tool is tried by itself
MAX_CALL_S: Final = 0.25  # of work for one token: as long as other answers may have to wait for it at a worker
MAX_SHOWN: Final = 40  # bytes of an answer in a refusal
_NO_EOS: Final = (1 << 62,)  # no token: a walk ends where nothing else may follow

Lengths = npt.NDArray[np.int64]  # (A,) bytes of each token that may follow
PICKS: Final[tuple[Callable[[Lengths], npt.NDArray[np.bool_]], ...]] = (  # among which tokens each walk draws
    lambda lengths_A: lengths_A >= 0,
    lambda lengths_A: lengths_A == lengths_A.max(),
    lambda lengths_A: lengths_A == lengths_A.min(),
)


def compiled(asked: Grammar, vocabulary: Vocabulary) -> tuple[str, CompiledGrammar]:
    """The grammar's text, and the grammar as a worker has it. GrammarRefused if there is none."""
    text = text_of(asked)
    try:
        return text, compile_grammar(text, vocabulary)
    except GrammarFault as fault:
        raise _refusal(asked, fault) from fault


def _refusal(asked: Grammar, fault: GrammarFault) -> GrammarRefused:
    what = fault.message.removeprefix("the grammar ")
    return GrammarRefused(in_words(what) if asked.kind in ("json", "tags", "calls") else what, place_of(asked))


class Trials:
    """Tries grammars for one vocabulary. `clock` counts the seconds that the thread has worked."""

    def __init__(self, vocabulary: Vocabulary, clock: Clock) -> None:
        self._vocabulary, self._clock = vocabulary, clock
        self._lengths_V: Lengths = np.array([len(token) for token in vocabulary.tokens], dtype=np.int64)

    def of(self, asked: Grammar) -> str | GrammarRefused:
        """The grammar's text; or why no answer can follow it."""
        refused = self._refused_alone(asked) if asked.kind == "calls" else None
        return self._tried(asked) if refused is None else refused

    def _refused_alone(self, asked: Grammar) -> GrammarRefused | None:
        """Tries each tool by itself, since random answers hardly come to its call behind thoughts and text."""
        began = self._clock.now()
        for source in for_each_tool(asked.source):
            if self._clock.now() - began > TOOLS_S:
                break
            if isinstance(outcome := self._tried(Grammar("calls", source)), GrammarRefused):
                return outcome
        return None

    def _tried(self, asked: Grammar) -> str | GrammarRefused:
        """The text of `asked`, or why it is refused. The grammar seeds its walks, so they are the same each time."""
        try:
            text, grammar = compiled(asked, self._vocabulary)
            self._walk_all(grammar, random.Random(grammar_name(text)))
        except GrammarFault as fault:
            return _refusal(asked, fault)
        except GrammarRefused as error:
            return error
        return text

    def _walk_all(self, grammar: CompiledGrammar, rng: random.Random) -> None:
        """Draws a few random answers. GrammarFault if one cannot go on, or if a token takes too much work."""
        began = self._clock.now()
        for is_wanted in PICKS:
            self._walk(grammar.begin(_NO_EOS), is_wanted, rng)
            if self._clock.now() - began > WALKS_S:
                return

    def _walk(
        self, matching: Matching, is_wanted: Callable[[Lengths], npt.NDArray[np.bool_]], rng: random.Random
    ) -> None:
        answer = b""
        for _ in range(MAX_STEPS):
            began = self._clock.now()
            tokens_A = self._may_follow(matching)
            self._check(matching, answer, began)
            if not len(tokens_A):
                return  # the answer has ended

            wanted = tokens_A[is_wanted(self._lengths_V[tokens_A])]
            token = int(wanted[rng.randrange(len(wanted))])
            began = self._clock.now()
            matching.read([token])
            answer += self._vocabulary.tokens[token]
            self._check(matching, answer, began)

    def _may_follow(self, matching: Matching) -> npt.NDArray[np.int64]:
        bits = np.unpackbits(matching.mask().view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: self._vocabulary.num_tokens])

    def _check(self, matching: Matching, answer: bytes, began: float) -> None:
        """GrammarFault if the answer cannot go on, or if the work since `began` was too much."""
        took_s = self._clock.now() - began
        if matching.fault:
            where = f"behind {_shown(answer)}, " if answer else ""
            raise GrammarFault(f"the grammar cannot be followed: {where}{matching.fault}")
        if took_s > MAX_CALL_S:
            raise GrammarFault(
                f"the grammar cannot be followed: behind {_shown(answer)} one token takes {took_s:.2f} s of work,"
                f" expected at most {MAX_CALL_S:g} s"
            )


def _shown(answer: bytes) -> str:
    return short(answer[-MAX_SHOWN:].decode(errors="replace"))
