"""Which tokens may follow in an answer that a grammar rules. llguidance compiles grammars and matches them.

    text --compile_grammar--> CompiledGrammar --begin--> Matching: read tokens, then fill_masks

llguidance allows a vocabulary's end where the answer may end. In its place the model's own EOS tokens are allowed.
Shapes: N answers, V tokens of the model, W words of 32 bits that hold V + 1 of them.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from protocol.errors import GrammarFault
from runtime.grammar_limits import complaint, limits
from runtime.vocabulary import Vocabulary

Words = npt.NDArray[np.int32]
_QUIET: Final = 0


class Matching:
    """One answer: what it has read, and what may follow. One thread at a time uses it.

    `eos_ids` end the answer. `late`: they are allowed only where nothing else is.
    """

    def __init__(self, matcher: LLMatcher, eos_ids: Sequence[int], *, late: bool) -> None:
        self.matcher, self.eos_ids, self.late = matcher, tuple(eos_ids), late
        self.is_over = False  # an EOS token was read
        self.fault = ""  # why nothing may follow; "" if something may

    def read(self, tokens: Sequence[int]) -> None:
        """The next tokens of the answer. Nothing is read behind its end, or behind a fault."""
        for token in tokens:
            if self.is_over or self.fault:
                return
            if token not in self.eos_ids:
                self.matcher.consume_token(token)
                self._look(f"the answer cannot go on in its grammar with token {token}")
            elif self.matcher.is_accepting():
                self.is_over = True
            else:
                self.fault = "the answer has ended before its grammar's end"

    def masked(self) -> bool:
        """A mask was made of its state. Whether it can be used."""
        self._look("the grammar allows no token here, or takes more work for one than is allowed")
        return not self.fault

    def _look(self, what: str) -> None:
        if self.matcher.is_error():
            self.fault = f"{what} ({complaint(self.matcher.get_error())})"


class CompiledGrammar:
    """A grammar, ready for answers."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def begin(self, eos_ids: Sequence[int], *, late: bool = False) -> Matching:
        """An answer that has not begun; see Matching."""
        return Matching(self._matcher.deep_copy(), eos_ids, late=late)


def compile_grammar(text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """Compiles a grammar. Other threads run meanwhile. GrammarFault if it is none, or takes more than `limits`."""
    matcher = LLMatcher(vocabulary.tokenizer, text, log_level=_QUIET, limits=limits())
    if matcher.is_error():
        raise GrammarFault(f"the grammar cannot be followed: {complaint(matcher.get_error())}")
    return CompiledGrammar(matcher)


def fill_masks(matchings: Sequence[Matching], vocabulary: Vocabulary, threads: LLExecutor) -> Words:
    """(N, W) masks of what may follow in each answer: bit b of word w stands for token 32 w + b.

    An answer with a fault allows nothing. One that is over allows everything: what is drawn behind it is dropped.
    """
    masks_NW = np.zeros((len(matchings), vocabulary.num_words), dtype=np.int32)
    going_on = [at for at, each in enumerate(matchings) if not (each.is_over or each.fault)]
    if going_on:
        wanted = [(matchings[at].matcher, at) for at in going_on]
        threads.unsafe_compute_mask_ptr(wanted, masks_NW.ctypes.data, 4 * vocabulary.num_words, len(matchings))
    for at, matching in enumerate(matchings):
        if matching.is_over:
            masks_NW[at] = -1
        elif matching.fault or not matching.masked():
            masks_NW[at] = 0
        else:
            _put_eos(masks_NW[at], matching, vocabulary.num_tokens)
    return masks_NW


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
