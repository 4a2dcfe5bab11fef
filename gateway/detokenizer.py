"""Token ids to text, one token at a time. A character is shown once its last byte has arrived, never in part.

Byte-level vocabularies map each token to bytes: the result equals decoding all ids at once. Any other decoder runs over
a short window of tokens.
"""

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

MAX_CONTEXT_TOKENS = 32  # tokens of the prompt that are decoded for context
MAX_WINDOW_TOKENS = 32  # longer than any incomplete character; a longer window is shown as it is
INCOMPLETE = "\ufffd"
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's spelling of a byte that has no token of its own


class Detokenizer(Protocol):
    """The text of one choice as it grows."""

    def feed(self, token_id: int) -> str:
        """The text that this token adds; "" while a character is incomplete."""
        ...

    def flush(self) -> str:
        """The text still held back, when no token follows (U+FFFD for an incomplete character)."""
        ...


class NoText:
    """For a model without a tokenizer: every text is empty."""

    def feed(self, token_id: int) -> str:
        """Always empty."""
        return ""

    def flush(self) -> str:
        """Always empty."""
        return ""


class TokenBytes:
    """The bytes of each token of a byte-level vocabulary, looked up once."""

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._known: dict[tuple[int, bool], bytes] = {}
        self.texts: dict[bool, dict[int, str]] = {False: {}, True: {}}  # by skip_special: whole characters

    def of(self, token_id: int, skip_special: bool) -> bytes:
        """The bytes of a token; empty for an unknown id, or for a special token if those are skipped."""
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
        return token.encode()  # an added token is spelt as itself


class ByteDetokenizer:
    """For byte-level vocabularies (GPT-2's, Llama 3's, Qwen's)."""

    def __init__(self, token_bytes: TokenBytes, context: Sequence[int], skip_special: bool) -> None:
        self._token_bytes = token_bytes
        self._skip_special = skip_special
        self._texts = token_bytes.texts[skip_special]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(b"".join(token_bytes.of(token_id, skip_special) for token_id in context))
        self._prompts_part = self._decoder.getstate()[0]  # bytes of a character that the prompt left incomplete
        self._is_between = not self._prompts_part  # no character is incomplete

    def feed(self, token_id: int) -> str:
        """See Detokenizer."""
        if self._is_between:
            text = self._texts.get(token_id)
            if text is not None:
                return text

        raw = self._token_bytes.of(token_id, self._skip_special)
        if self._prompts_part and raw:
            self._settle(raw)
        text = self._decoder.decode(raw)
        self._is_between = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        """See Detokenizer."""
        if self._prompts_part:
            self._settle(b"")
        return self._decoder.decode(b"", final=True)

    def _settle(self, raw: bytes) -> None:
        """Forgets the character that the prompt left incomplete, unless `raw` continues it."""
        part, self._prompts_part = self._prompts_part, b""
        try:
            codecs.utf_8_decode(part + raw[:1], "strict", not raw)
        except UnicodeDecodeError:
            self._decoder.reset()


class WindowDetokenizer:
    """For any decoder: the text of a window of tokens, less the text of its part that was already shown.

    ids   [ shown ... | start ... shown_end | shown_end ... end )
                        ^ context, whose text is known   ^ new

    Tokens without text never enter the window: a model may repeat them for ever. The prompt's last tokens count as
    shown, except the bytes of an incomplete character: that is shown as soon as it is complete.
    """

    def __init__(
        self, tokenizer: Tokenizer, special_ids: frozenset[int], context: Sequence[int], skip_special: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = special_ids if skip_special else frozenset()
        self._window = [token_id for token_id in context if self._has_text(token_id)]
        self._num_shown = self._num_whole()
        self._prompts_text = self._decode(self._window)  # as decoded; "" once text was shown

    def feed(self, token_id: int) -> str:
        """See Detokenizer."""
        if not self._has_text(token_id):
            return ""
        self._window.append(token_id)

        before, after = self._texts()
        num_new = len(self._window) - self._num_shown
        if len(after) <= len(before) or (after.endswith(INCOMPLETE) and num_new < MAX_WINDOW_TOKENS):
            return ""

        del self._window[: self._num_shown]
        self._num_shown, self._prompts_text = len(self._window), ""
        return after[len(before) :]

    def flush(self) -> str:
        """See Detokenizer."""
        before, after = self._texts()
        self._num_shown = len(self._window)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        """(the text shown before or in the prompt, the same with the new tokens)."""
        after = self._decode(self._window)
        if self._prompts_text and after.startswith(self._prompts_text):
            return self._prompts_text, after
        return self._decode(self._window[: self._num_shown]), after

    def _has_text(self, token_id: int) -> bool:
        return token_id not in self._skipped_ids and self._tokenizer.id_to_token(token_id) is not None

    def _num_whole(self) -> int:
        """Number of tokens before the incomplete character at the window's end, if byte tokens began one."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id in self._window:
            byte = BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(token_id) or "")
            if byte is None:
                decoder.reset()
            else:
                decoder.decode(bytes.fromhex(byte[1]))
        return len(self._window) - len(decoder.getstate()[0])

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether this vocabulary spells its tokens in GPT-2's byte alphabet."""
    return isinstance(tokenizer.decoder, ByteLevel)


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte: itself if it is visible in Latin-1, else one from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(seen)]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
