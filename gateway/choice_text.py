"""Turns the tokens of one choice into text: detokenizer first, then stop strings. One piece for each token.

A pure state machine: no I/O, no clock.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.detokenizer import Detokenizer
from gateway.stop_strings import StopSet, StopStrings
from protocol.request import FinishReason


class Piece(NamedTuple):
    """What one token adds. `text` is empty while a character is incomplete or may begin a stop string."""

    text: str
    token_id: int | None  # None: no token, only a finish reason
    finish_reason: str | None


class ChoiceText:
    """Turns tokens of one choice into pieces, in order. Do not feed anything after a finish."""

    def __init__(self, detokenizer: Detokenizer, stops: StopSet, min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops.strings)
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self.finish_reason: str | None = None

    @property
    def hit_stop_string(self) -> bool:
        """Whether a stop string cut the text. The worker must then be told to stop."""
        return self._stops.has_matched

    def feed(self, token_ids: Sequence[int], finish: FinishReason | None) -> list[Piece]:
        """The pieces of `token_ids`, up to a stop string. The stop token that ended the choice has no text."""
        if finish is None and len(token_ids) == 1 and not self._has_stops:  # nearly every call
            self.num_tokens += 1
            return [Piece(self._detokenizer.feed(token_ids[0]), token_ids[0], None)]

        if not token_ids and finish is not None:
            return [self._piece(self._detokenizer.flush(), None, finish)]

        pieces: list[Piece] = []
        last = len(token_ids) - 1

        for place, token_id in enumerate(token_ids):
            ends = finish if place == last else None
            self.num_tokens += 1
            text = "" if ends is FinishReason.STOP else self._detokenizer.feed(token_id)
            if ends is not None:
                text += self._detokenizer.flush()
            pieces.append(self._piece(text, token_id, ends))
            if self.finish_reason is not None:
                break

        return pieces

    def _piece(self, text: str, token_id: int | None, ends: FinishReason | None) -> Piece:
        if self.num_tokens >= self._min_tokens:
            text = self._stops.feed(text)
        if self.hit_stop_string:
            self.finish_reason = "stop"
        elif ends is not None:
            self.finish_reason = str(ends)
            text += self._stops.flush()
        return Piece(text, token_id, self.finish_reason)
