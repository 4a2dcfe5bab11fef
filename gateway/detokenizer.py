"""Token ids to text, one token at a time: a character is shown when its last byte has come, never half of one.

Two ways: byte-level vocabularies map each token to bytes (exactly what decoding all ids at once would give); every
other decoder runs over a short window of tokens. What it does not know: stop strings, requests.
"""

import codecs
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

MAX_WINDOW_TOKENS = 32  # an incomplete character is shorter; beyond it the text is taken as it is
INCOMPLETE = "\ufffd"


class Detokenizer(Protocol):
    """The text of one choice as it grows."""

    def feed(self, token_id: int) -> str:
        """What this token adds to the text, "" while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What is left when no token follows (U+FFFD for an incomplete character)."""
        ...


class NoText:
    """For a model without tokenizer."""

    def feed(self, token_id: int) -> str:
        """Nothing."""
        return ""

    def flush(self) -> str:
        """Nothing."""
        return ""


class TokenBytes:
    """The bytes of each token of a byte-level vocabulary, looked up once."""

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._known: dict[tuple[int, bool], bytes] = {}
        self.texts: dict[bool, dict[int, str]] = {False: {}, True: {}}  # by skip_special: tokens of whole characters

    def of(self, token_id: int, skip_special: bool) -> bytes:
        """Bytes of a token; none for an id without token, or for a special one that is to be skipped."""
        key = (token_id, skip_special)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(token_id, skip_special)
            with suppress(UnicodeDecodeError):
                self.texts[skip_special][token_id] = found.decode()
        return found

    def _read(self, token_id: int, skip_special: bool) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or (skip_special and token_id in self._special_ids):
            return b""
        alphabet = byte_alphabet()
        if all(char in alphabet for char in token):
            return bytes(alphabet[char] for char in token)
        return token.encode()  # an added token, written as it is


class ByteDetokenizer:
    """For byte-level vocabularies (GPT-2's, Llama 3's, Qwen's)."""

    def __init__(self, token_bytes: TokenBytes, skip_special: bool) -> None:
        self._token_bytes = token_bytes
        self._skip_special = skip_special
        self._texts = token_bytes.texts[skip_special]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_between = True  # no character is begun

    def feed(self, token_id: int) -> str:
        """See Detokenizer."""
        if self._is_between:
            text = self._texts.get(token_id)
            if text is not None:
                return text
        text = self._decoder.decode(self._token_bytes.of(token_id, self._skip_special))
        self._is_between = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any decoder: the text of a window of tokens, less the text of the part of it that was shown before.

    ids   [ shown ... | start ... shown_end | shown_end ... end )
                        ^ context, whose text is known   ^ new

    Tokens that no text can come from never enter the window: a model may repeat them for ever.
    """

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int], skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = special_ids if skip_special else frozenset()
        self._window: list[int] = []
        self._num_shown = 0

    def feed(self, token_id: int) -> str:
        """See Detokenizer."""
        if token_id in self._skipped_ids or self._tokenizer.id_to_token(token_id) is None:
            return ""
        self._window.append(token_id)
        before, after = self._texts()
        num_new = len(self._window) - self._num_shown
        if len(after) <= len(before) or (after.endswith(INCOMPLETE) and num_new < MAX_WINDOW_TOKENS):
            return ""
        del self._window[: self._num_shown]
        self._num_shown = len(self._window)
        return after[len(before) :]

    def flush(self) -> str:
        """See Detokenizer."""
        before, after = self._texts()
        self._num_shown = len(self._window)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        shown = self._window[: self._num_shown]
        return (
            self._tokenizer.decode(shown, skip_special_tokens=False) if shown else "",
            self._tokenizer.decode(self._window, skip_special_tokens=False),
        )


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether tokens of this vocabulary are spelt in GPT-2's byte alphabet."""
    return isinstance(tokenizer.decoder, ByteLevel)


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte: itself if it can be seen in Latin-1, else one from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(seen)]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
