"""Which tokens may follow in an answer that a grammar rules. llguidance compiles grammars and matches them.

    text --compile_grammar--> CompiledGrammar --begin--> Matching: read tokens, then fill_masks

A vocabulary has one token more than the model, the end: llguidance allows it where the answer may end. In its place the
model's own EOS tokens are allowed. Nothing here turns tokens into text: a vocabulary holds the bytes of each token.
Shapes: N answers, V tokens of the model, W words of 32 bits that hold V + 1 of them.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from protocol.errors import GrammarFault
from runtime.byte_alphabet import BYTE_TOKEN, byte_alphabet, is_byte_level
from runtime.grammar_limits import complaint, limits

Words = npt.NDArray[np.int32]
Encode = Callable[[str], Sequence[int]]
SPACE: Final = "\u2581"  # SentencePiece's spelling of a space
_END: Final = b"<|the end of the answer|>"
_QUIET: Final = 0


class Vocabulary:
    """The bytes of each token of a model; `special` have no text, and stand in an answer only if its grammar names
    them. `encode`: the tokens that the model's tokenizer makes of a text; None: the longest ones first."""

    def __init__(self, tokens: Sequence[bytes], special: frozenset[int], encode: Encode | None = None) -> None:
        self.num_tokens = len(tokens)
        self.num_words = self.num_tokens // 32 + 1
        self._tokens, self._encode_text = tokens, encode
        self._wrapped = _Wrapped([*tokens, _END], [*sorted(special), self.num_tokens], self._encode)
        self.tokenizer = LLTokenizer(TokenizerWrapper(self._wrapped))

    def _encode(self, text: str) -> list[int]:
        """Called by llguidance where a grammar leaves no choice: the tokens of a text that must follow."""
        if self._encode_text is not None:
            ids = list(self._encode_text(text))
            if b"".join(self._tokens[token] for token in ids) == text.encode():
                return ids
        return list(self.tokenizer.greedy_tokenize(text))


class _Wrapped:
    """A vocabulary in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], encode: Callable[[str], list[int]]) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special_token_ids, len(tokens) - 1
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def load_vocabulary(folder: Path, num_tokens: int) -> Vocabulary:
    """The vocabulary of a folder's tokenizer.json for a model of `num_tokens` tokens. GrammarFault if there is none, or
    if its tokens have no bytes of their own."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise GrammarFault("the worker has no tokenizer.json beside its model, so it cannot follow a grammar")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise GrammarFault(f"the worker cannot read its tokenizer.json: {str(error)[:300]}") from error

    spelling = _spelling(tokenizer)
    added = tokenizer.get_added_tokens_decoder()
    tokens, special = [b""] * num_tokens, set(range(num_tokens))
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id >= num_tokens:
            continue
        own = added.get(token_id)
        tokens[token_id] = spelling(token) if own is None else own.content.encode()
        if (own is None or not own.special) and tokens[token_id]:
            special.discard(token_id)

    def encode(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    return Vocabulary(tokens, frozenset(special), encode)


def _spelling(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """What a token's name in the vocabulary stands for."""
    if is_byte_level(tokenizer):
        alphabet = byte_alphabet()
        return lambda token: bytes([alphabet[char] for char in token if char in alphabet])

    described = "" if tokenizer.decoder is None else tokenizer.decoder.__getstate__().decode()
    if SPACE not in json.dumps(json.loads(described or "null"), ensure_ascii=False):
        raise GrammarFault("this model's tokenizer is of a kind whose tokens have no bytes of their own")

    def spelt(token: str) -> bytes:
        byte = BYTE_TOKEN.fullmatch(token)
        return bytes.fromhex(byte[1]) if byte else token.replace(SPACE, " ").encode()

    return spelt


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
