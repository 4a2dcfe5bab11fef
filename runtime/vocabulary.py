"""The bytes of each token of a model, in the form that llguidance reads. Nothing here turns tokens into text.

A vocabulary has one token more than the model, the end: llguidance allows it where an answer may end.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from protocol.errors import GrammarFault
from runtime.byte_alphabet import BYTE_TOKEN, byte_alphabet, is_byte_level

Encode = Callable[[str], Sequence[int]]
SPACE: Final = "\u2581"  # SentencePiece's spelling of a space
FORCED_CHARS: Final = 256  # of a forced text are tokenised: its first token lies far within
_END: Final = b"<|the end of the answer|>"
_MARK: Final = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")  # an added token of this form is no text, as <tool_call>


class Vocabulary:
    """The bytes of each token of a model; `special` are no text, and stand in an answer only if its grammar names
    them. `encode`: the tokens that the model's tokenizer makes of a text; None: the longest ones first."""

    def __init__(self, tokens: Sequence[bytes], special: frozenset[int], encode: Encode | None = None) -> None:
        self.num_tokens = len(tokens)
        self.num_words = self.num_tokens // 32 + 1
        self.tokens, self._encode_text, self._special = tokens, encode, special
        # llguidance names an id without bytes as it spells the ids that a grammar names, and would mix them up
        named = [token or b"<|no token %d|>" % token_id for token_id, token in enumerate(tokens)]
        self._wrapped = _Wrapped([*named, _END], [*sorted(special), self.num_tokens], self._encode)
        self.tokenizer = LLTokenizer(TokenizerWrapper(self._wrapped))

    def _encode(self, text: str) -> list[int]:
        """Called by llguidance for each mask where a grammar leaves no choice: the tokens with which a text begins that
        must follow. A mask takes the first one, and a text may be as long as a grammar: its beginning is enough."""
        text = text[:FORCED_CHARS]
        if self._encode_text is not None:
            ids = list(self._encode_text(text))
            if self._spells(ids, text):
                return ids
        return list(self.tokenizer.greedy_tokenize(text))

    def _spells(self, ids: Sequence[int], text: str) -> bool:
        """Whether these tokens are the text. A special token is none, though a tokenizer reads one where its name
        stands: the name is written in letters."""
        if any(token in self._special or token >= self.num_tokens for token in ids):
            return False
        return b"".join(self.tokens[token] for token in ids) == text.encode()


class _Wrapped:
    """A vocabulary in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], encode: Callable[[str], list[int]]) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special_token_ids, len(tokens) - 1
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):  # the library tries bytes first
            raise TypeError("expected a text")
        return self._encode(text)


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
        is_text = own is None or not (own.special or _MARK.fullmatch(own.content))
        if is_text and tokens[token_id]:
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
