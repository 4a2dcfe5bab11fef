"""Turns the tokens of one choice into text: detokenizer first, then stop strings. One piece for each delivery. Pure.

A character is shown once its last byte has arrived, never in part. Stop strings are also found in the text of special
tokens that are not shown. So the result does not depend on how the text was cut into pieces.
"""

import codecs
from collections.abc import Sequence
from contextlib import suppress

from tokenizers import Tokenizer

from gateway.text.held_tokens import HeldTokens
from gateway.text.stop_strings import StopSet, StopStrings
from gateway.words.pieces import Piece
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason
from runtime.byte_alphabet import BYTE_TOKEN, byte_alphabet

MAX_CONTEXT_TOKENS = 32  # tokens of the prompt that are decoded for context
MAX_WINDOW_TOKENS = 32  # longer than any incomplete character; a longer window is shown as it is
INCOMPLETE = "\ufffd"


# ---- ids to text ----


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
        """The text still held back, when no token follows (U+FFFD for an incomplete character)."""
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
        self._num_shown = len(self._window)
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


# ---- the text of a choice ----


class ChoiceText:
    """Turns tokens of one choice into pieces, in order. Do not feed anything after a finish. `num_echoed`: characters
    of the prompt's text that the choice begins with; stop strings are not looked for there."""

    def __init__(self, detokenizer: Detokenizer, stops: StopSet, min_tokens: int, num_echoed: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops.strings)
        self._min_tokens = min_tokens
        self._held = HeldTokens(num_echoed)
        self.num_tokens = 0
        self.finish_reason: str | None = None

    @property
    def hit_stop_string(self) -> bool:
        """Whether a stop string cut the text. The worker must then be told to stop."""
        return self._stops.matched is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that cut the text."""
        return self._stops.matched

    def feed(
        self, token_ids: tuple[int, ...], finish: FinishReason | None, logprobs: Sequence[TokenLogprob] = ()
    ) -> Piece:
        """The piece of `token_ids`, up to a stop string. The stop token that ended the choice has no text. `logprobs`:
        those of each token, if they are asked for."""
        if finish is None and len(token_ids) == 1 and not self._has_stops and not logprobs:  # nearly every call
            self.num_tokens += 1
            return Piece(self._detokenizer.feed(token_ids[0]), token_ids, None)

        text, num_used, last = "", 0, len(token_ids) - 1
        while num_used <= last and not self.hit_stop_string:
            self.num_tokens += 1
            is_stop_token = finish is FinishReason.STOP and num_used == last
            added = "" if is_stop_token else self._detokenizer.feed(token_ids[num_used])
            if logprobs:
                is_whole = self._detokenizer.is_whole
                self._held.read(token_ids[num_used], logprobs[num_used], len(added), is_whole=is_whole)
            text += self._without_stops(added)
            if self._has_stops and not is_stop_token and not self.hit_stop_string:
                text += self._without_stops(self._detokenizer.hidden_text(token_ids[num_used]), is_hidden=True)
            num_used += 1

        if finish is not None and not self.hit_stop_string:
            text += self._without_stops(self._detokenizer.flush())
        if self.hit_stop_string:
            self.finish_reason = "stop"
        elif finish is not None:
            self.finish_reason = str(finish)
            text += self._stops.flush()
        told = self._held.shown(len(text))
        if self.finish_reason is not None:
            told += self._held.rest(is_cut=self.hit_stop_string)
        return Piece(text, token_ids[:num_used], self.finish_reason, told, tuple(logprobs[:num_used]))

    def end(self, reason: str) -> Piece:
        """The last piece of a choice that ends without another token: the text that was held back."""
        self.finish_reason = reason
        text = self._without_stops(self._detokenizer.flush()) + self._stops.flush()
        return Piece(text, (), reason, self._held.rest(is_cut=False))

    def _without_stops(self, text: str, *, is_hidden: bool = False) -> str:
        """The text that may be shown now. Before `min_tokens` stop strings are read, too, but none ends the choice."""
        return self._stops.feed(text, may_stop=self.num_tokens >= self._min_tokens, is_hidden=is_hidden)
