"""Which tokens may follow in an answer that a grammar rules. llguidance compiles grammars and matches them.

    text --compile_grammar--> CompiledGrammar --begin--> Matching: read tokens, then mask

llguidance allows a vocabulary's end where the answer may end. In its place the model's own EOS tokens are allowed.
A native call cannot be interrupted, and reading keeps the interpreter to itself: `limits` bounds what one call takes.
Shapes: V tokens of the model, W words of 32 bits that hold V + 1 of them.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from protocol.errors import GrammarFault
from runtime.grammar_limits import complaint, limits
from runtime.vocabulary import Vocabulary

Words = npt.NDArray[np.int32]
_QUIET: Final = 0


class Matching:
    """One answer: what it has read, and what may follow. One thread at a time uses it.

    `eos_ids` end the answer. `late`: they are allowed only where nothing else is. `first_W`: what the grammar allows
    before the first token.
    """

    def __init__(
        self, matcher: LLMatcher, vocabulary: Vocabulary, eos_ids: Sequence[int], first_W: Words, *, late: bool
    ) -> None:
        self.matcher, self.eos_ids, self.late = matcher, tuple(eos_ids), late
        self.is_over = False  # an EOS token was read
        self.fault = ""  # why nothing may follow; "" if something may
        self._vocabulary = vocabulary
        self._next_W: Words | None = first_W  # what the grammar allows next; None: not known yet

    @property
    def has_mask(self) -> bool:
        """Whether `mask` takes no work, because it was made already."""
        return bool(self._next_W is not None or self.is_over or self.fault)

    def read(self, tokens: Sequence[int]) -> None:
        """The next tokens of the answer. Nothing is read behind its end, or behind a fault."""
        for token in tokens:
            if self.is_over or self.fault:
                return
            if token not in self.eos_ids:
                self._next_W = None
                self.matcher.consume_token(token)
                self._look(f"the answer cannot go on in its grammar with token {token}")
            elif self.matcher.is_accepting():
                self.is_over = True
            else:
                self.fault = "the answer has ended before its grammar's end"

    def mask(self) -> Words:
        """(W) what may follow: bit b of word w stands for token 32 w + b. Other threads run meanwhile.

        An answer with a fault allows nothing. One that is over allows everything: what is drawn behind it is dropped.
        """
        if self.is_over:
            return np.full(self._vocabulary.num_words, -1, dtype=np.int32)
        if self._next_W is None and not self.fault:
            self._next_W = _next(self.matcher, self._vocabulary)
            self._look("the grammar allows no token here, or takes more work for one than is allowed")
        if self._next_W is None or self.fault:
            return np.zeros(self._vocabulary.num_words, dtype=np.int32)
        mask_W = self._next_W.copy()
        _put_eos(mask_W, self, self._vocabulary.num_tokens)
        return mask_W

    def _look(self, what: str) -> None:
        if self.matcher.is_error():
            self.fault = f"{what} ({complaint(self.matcher.get_error())})"


class CompiledGrammar:
    """A grammar, ready for answers. All of them share the first mask, `first_W`."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, first_W: Words) -> None:
        self._matcher, self._vocabulary, self._first_W = matcher, vocabulary, first_W

    def begin(self, eos_ids: Sequence[int], *, late: bool = False) -> Matching:
        """An answer that has not begun; see Matching."""
        return Matching(self._matcher.deep_copy(), self._vocabulary, eos_ids, self._first_W, late=late)


def compile_grammar(text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """Compiles a grammar and makes its first mask. Other threads run meanwhile. GrammarFault if it is none, or takes
    more than `limits`."""
    matcher = LLMatcher(vocabulary.tokenizer, text, log_level=_QUIET, limits=limits(text))
    _check(matcher)
    first_W = _next(matcher, vocabulary)
    _check(matcher)
    return CompiledGrammar(matcher, vocabulary, first_W)


def library_error(error: BaseException) -> str:
    """The name of an error that a call of the library has raised. What is no bug of it, such as an interrupt, is raised
    again. A panic of its native code is no Exception, and its class cannot be imported."""
    kind = type(error)
    if isinstance(error, Exception) or kind.__module__ == "pyo3_runtime":
        return kind.__name__
    raise error


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarFault(f"the grammar cannot be followed: {complaint(matcher.get_error())}")


def _next(matcher: LLMatcher, vocabulary: Vocabulary) -> Words:
    """What the library allows next."""
    next_W = np.zeros(vocabulary.num_words, dtype=np.int32)
    matcher.unsafe_compute_mask_ptr(next_W.ctypes.data, next_W.nbytes)
    return next_W


def _put_eos(mask_W: Words, matching: Matching, end: int) -> None:
    """Allows the model's EOS tokens in the place of the end, and only there."""
    bits_W = mask_W.view(np.uint32)
    end_bit = np.uint32(1 << end % 32)
    may_end = bool(bits_W[end // 32] & end_bit)
    bits_W[end // 32] &= ~end_bit
    if may_end and not (matching.late and bits_W.any()):
        for token in matching.eos_ids:
            if 0 <= token < end:
                bits_W[token // 32] |= np.uint32(1 << token % 32)
