"""The way of one choice from tokens to what its answer gains, one Step for each delivery. Pure.

    tokens --detokenizer.py--> characters, special tokens --stop_strings.py--> what may be shown --> Step

Stop strings are also found in the text of special tokens that are not shown. So the result does not depend on how the
tokens were cut into deliveries. Stop strings come last, behind whatever tells the answer's text from other text: they
cut TextDeltas only.
"""

from collections.abc import Sequence

from gateway.text.detokenizer import Detokenizer
from gateway.text.held_tokens import HeldTokens
from gateway.text.stop_strings import StopSet, StopStrings
from gateway.words.events import Finish, Reason, Step, TextDelta
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason


class Pipeline:
    """Turns tokens of one choice into Steps, in order. Do not feed anything after a finish. `num_echoed`: characters of
    the prompt's text that the choice begins with; stop strings are not looked for there."""

    def __init__(self, detokenizer: Detokenizer, stops: StopSet, min_tokens: int, num_echoed: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops.strings)
        self._min_tokens = min_tokens
        self._held = HeldTokens(num_echoed)
        self._last_id: int | None = None
        self.num_tokens = 0
        self.finish: Finish | None = None

    @property
    def is_cut(self) -> bool:
        """Whether a stop string has ended the choice. The worker must then be told to stop."""
        return self._stops.matched is not None

    def feed(
        self, token_ids: tuple[int, ...], finish: FinishReason | None, logprobs: Sequence[TokenLogprob] = ()
    ) -> Step:
        """The Step of `token_ids`, up to a stop string. The stop token that ended the choice has no text. `logprobs`:
        those of each token, if they are asked for."""
        if finish is None and len(token_ids) == 1 and not self._has_stops and not logprobs:  # nearly every call
            self.num_tokens += 1
            self._last_id = token_ids[0]
            text = self._detokenizer.feed(token_ids[0])
            return Step((TextDelta(text),) if text else (), token_ids)

        text, num_used, last = "", 0, len(token_ids) - 1
        while num_used <= last and not self.is_cut:
            is_stop_token = finish is FinishReason.STOP and num_used == last
            text += self._take(token_ids[num_used], logprobs[num_used] if logprobs else None, is_stop_token)
            num_used += 1

        if self.is_cut or finish is not None:
            text += self._end(Reason.STOP if finish is None else Reason(finish))
        return self._step(text, token_ids[:num_used], tuple(logprobs[:num_used]))

    def end(self, reason: Reason) -> Step:
        """The last Step of a choice that ends without another token: the text that was held back."""
        return self._step(self._end(reason))

    def _take(self, token_id: int, scored: TokenLogprob | None, is_stop_token: bool) -> str:
        """The text that may be shown once this token is there."""
        self.num_tokens += 1
        self._last_id = token_id
        characters = "" if is_stop_token else self._detokenizer.feed(token_id)
        if scored is not None:
            self._held.read(token_id, scored, len(characters), is_whole=self._detokenizer.is_whole)

        # All characters are text of the answer. What tells thoughts and calls from it belongs here.
        text = self._without_stops(characters)
        if self._has_stops and not is_stop_token and not self.is_cut:
            text += self._without_stops(self._detokenizer.hidden_text(token_id), is_hidden=True)
        return text

    def _end(self, reason: Reason) -> str:
        """The text that was held back. Sets `finish`: a stop string may end the choice still."""
        text = "" if self.is_cut else self._without_stops(self._detokenizer.flush())
        if self.is_cut:
            self.finish = Finish(Reason.STOP, self._stops.matched)
        else:
            self.finish = Finish(reason, self._last_id if reason is Reason.STOP else None)
        return text + self._stops.flush()

    def _without_stops(self, text: str, *, is_hidden: bool = False) -> str:
        """The last stage: the text that may be shown now. Before `min_tokens` stop strings are read, too, but none ends
        the choice."""
        return self._stops.feed(text, may_stop=self.num_tokens >= self._min_tokens, is_hidden=is_hidden)

    def _step(self, text: str, token_ids: tuple[int, ...] = (), scores: tuple[TokenLogprob, ...] = ()) -> Step:
        shown = self._held.shown(len(text))
        if self.finish is not None:
            shown += self._held.rest(is_cut=self.is_cut)
        return Step((TextDelta(text),) if text else (), token_ids, self.finish, shown, scores)
