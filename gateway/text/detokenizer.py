"""Turns the tokens of one choice into characters. Pure.

A character is shown once its last byte has arrived, never in part. So the text does not depend on how the tokens were
cut into deliveries.
"""

import codecs
from collections.abc import Sequence
from contextlib import suppress

from tokenizers import Tokenizer

from runtime.byte_alphabet import BYTE_TOKEN, byte_alphabet

MAX_CONTEXT_TOKENS = 32  # tokens of the prompt that are decoded for context
MAX_WINDOW_TOKENS = 32  # longer than any incomplete character; a longer window is shown as it is
INCOMPLETE = "\ufffd"


class Detokenizer:
    """The text of one choice as it grows. This one is for a model without a tokenizer: every text is empty."""

    @property
    def is_whole(self) -> bool:
        """Whether no character waits for its other bytes."""
        return True

    def feed(self, token_id: int) -> str:
        """The text that this token adds; "" while a character is incomplete."""
        return ""

    def flush(self) -> str:
        """The text still held back (U+FFFD for an incomplete character). Tokens that follow begin another one."""
        return ""

    def hidden_text(self, token_id: int) -> str:
        """The text of a special token that is not shown; "" for any other token."""
        return ""


class TokenBytes(dict[int, bytes]):
    """The bytes of each token of a byte-level vocabulary, looked up once; none for an unknown or skipped token."""

    def __init__(self, tokenizer: Tokenizer, skipped_ids: frozenset[int]) -> None:
        super().__init__()
        self._tokenizer, self._skipped_ids = tokenizer, skipped_ids
        self.texts: dict[int, str] = {}  # of those that are whole characters

    def hidden_text(self, token_id: int) -> str:
        """See Detokenizer."""
        return self._tokenizer.id_to_token(token_id) or "" if token_id in self._skipped_ids else ""

    def __missing__(self, token_id: int) -> bytes:
        token = "" if token_id in self._skipped_ids else self._tokenizer.id_to_token(token_id) or ""
        alphabet = byte_alphabet()
        if all(char in alphabet for char in token):
            spelt = bytes(alphabet[char] for char in token)
        else:
            spelt = token.encode()  # an added token is spelt as itself

        self[token_id] = spelt
        with suppress(UnicodeDecodeError):
            self.texts[token_id] = spelt.decode()
        return spelt


class ByteDetokenizer(Detokenizer):
    """For byte-level vocabularies (GPT-2's, Llama 3's, Qwen's): the result equals decoding all ids at once."""

    def __init__(self, token_bytes: TokenBytes, context: Sequence[int]) -> None:
        self._token_bytes, self._texts = token_bytes, token_bytes.texts
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(b"".join(token_bytes[token_id] for token_id in context))
        self._prompts_part = self._decoder.getstate()[0]  # bytes of a character that the prompt left incomplete
        self._is_between = not self._prompts_part  # no character is incomplete

    @property
    def is_whole(self) -> bool:
        """See Detokenizer."""
        return self._is_between

    def feed(self, token_id: int) -> str:
        """See Detokenizer."""
        if self._is_between:
            text = self._texts.get(token_id)
            if text is not None:
                return text

        raw = self._token_bytes[token_id]
        if self._prompts_part and raw:
            self._settle(raw)
        text = self._decoder.decode(raw)
        self._is_between = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        """See Detokenizer."""
        if self._prompts_part:
            self._settle(b"")
        self._is_between = True
        return self._decoder.decode(b"", final=True)

    def hidden_text(self, token_id: int) -> str:
        """See Detokenizer."""
        return self._token_bytes.hidden_text(token_id)

    def _settle(self, raw: bytes) -> None:
        """Forgets the character that the prompt left incomplete, unless `raw` continues it."""
        part, self._prompts_part = self._prompts_part, b""
        try:
            codecs.utf_8_decode(part + raw[:1], "strict", not raw)
        except UnicodeDecodeError:
            self._decoder.reset()


class WindowDetokenizer(Detokenizer):
    """For any decoder: the text of a window of tokens, less the text of its part that was already shown.

    ids   [ shown ... | start ... shown_end | shown_end ... end )
                        ^ context, whose text is known   ^ new

    Tokens without text never enter the window: a model may repeat them for ever. The prompt's last tokens count as
    shown, except the bytes of an incomplete character: that is shown as soon as it is complete.
    """

    def __init__(self, tokenizer: Tokenizer, skipped_ids: frozenset[int], context: Sequence[int]) -> None:
        self._tokenizer, self._skipped_ids = tokenizer, skipped_ids
        self._window = [token_id for token_id in context if self._has_text(token_id)]
        self._num_shown = self._num_whole()
        self._prompts_text = self._decode(self._window)  # as decoded; "" once text was shown

    @property
    def is_whole(self) -> bool:
        """See Detokenizer."""
        return len(self._window) == self._num_shown

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
        del self._window[self._num_whole() :]  # no later byte belongs to that character
        self._num_shown, self._prompts_text = len(self._window), ""
        return after[len(before) :]

    def hidden_text(self, token_id: int) -> str:
        """See Detokenizer."""
        return self._tokenizer.id_to_token(token_id) or "" if token_id in self._skipped_ids else ""

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
