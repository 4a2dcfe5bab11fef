"""The way of one choice from tokens to what its answer gains, one Step for each delivery. Pure.

    tokens --detokenizer.py--> characters, markers --channels/--> events --stop_strings.py--> what may be shown --> Step

Stop strings are also found in the text of special tokens that are not shown. So the result does not depend on how the
tokens were cut into deliveries. Stop strings come last: they cut text, never thoughts or arguments of calls, and are
found within one run of text. Without channels all characters are text.
"""

from collections.abc import Iterable, Sequence

from gateway.text.channels.channels import Channels, joined
from gateway.text.channels.fold import ends_with_calls
from gateway.text.detokenizer import Detokenizer
from gateway.text.held_tokens import HeldTokens
from gateway.text.stop_strings import StopSet, StopStrings
from gateway.words.events import CallBegin, CallBroken, Event, Finish, Reason, Step, TextDelta
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason


class Pipeline:
    """Turns tokens of one choice into Steps, in order. Do not feed anything after a finish. `num_echoed`: characters of
    the prompt's text that the choice begins with; stop strings are not looked for there."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopSet,
        min_tokens: int,
        num_echoed: int = 0,
        channels: Channels | None = None,
    ) -> None:
        self._detokenizer, self._channels = detokenizer, channels
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops.strings)
        self._is_plain = not stops.strings and channels is None  # all characters are shown when they are there
        self._min_tokens = min_tokens
        self._held = HeldTokens(num_echoed)
        self._last_id: int | None = None
        self._num_calls = self._num_broken = 0
        self.num_tokens = 0
        self.num_reasoning = 0  # of these, thoughts
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
        if finish is None and len(token_ids) == 1 and self._is_plain and not logprobs:  # nearly every call
            self.num_tokens += 1
            self._last_id = token_ids[0]
            text = self._detokenizer.feed(token_ids[0])
            return Step((TextDelta(text),) if text else (), token_ids)
        if finish is None and token_ids and self._is_plain and not logprobs:  # the same with drafts
            self.num_tokens += len(token_ids)
            self._last_id = token_ids[-1]
            text = "".join(map(self._detokenizer.feed, token_ids))
            return Step((TextDelta(text),) if text else (), token_ids)

        events: list[Event] = []
        num_used, last = 0, len(token_ids) - 1
        while num_used <= last and not self.is_cut:
            is_stop_token = finish is FinishReason.STOP and num_used == last
            events += self._take(token_ids[num_used], logprobs[num_used] if logprobs else None, is_stop_token)
            num_used += 1

        if self.is_cut or finish is not None:
            events += self._end(Reason.STOP if finish is None else Reason(finish))
        return self._step(events, token_ids[:num_used], tuple(logprobs[:num_used]))

    def end(self, reason: Reason) -> Step:
        """The last Step of a choice that ends without another token: the text that was held back."""
        return self._step(self._end(reason))

    def _take(self, token_id: int, scored: TokenLogprob | None, is_stop_token: bool) -> list[Event]:
        """What may be shown once this token is there."""
        self.num_tokens += 1
        self._last_id = token_id
        told = [] if is_stop_token else self._read(token_id)
        if scored is not None:
            self._held.read(token_id, scored, _num_chars(told), is_whole=self._detokenizer.is_whole)

        events = self._without_stops(told)
        if not self._has_stops or is_stop_token or self.is_cut:
            return events
        hidden = "" if self._shows_marker(token_id, told) else self._detokenizer.hidden_text(token_id)
        if hidden and self._is_text and (text := self._scan(hidden, is_hidden=True)):
            events.append(TextDelta(text))
        return events

    def _read(self, token_id: int) -> list[Event]:
        """What the choice gains by a token, before stop strings."""
        channels = self._channels
        if channels is None:
            text = self._detokenizer.feed(token_id)
            return [TextDelta(text)] if text else []
        if channels.is_marker(token_id):
            return [*channels.text(self._detokenizer.flush()), *channels.marker(token_id)]

        text = self._detokenizer.feed(token_id)
        events = channels.text(text)
        if not text and self._detokenizer.hidden_text(token_id):
            events += channels.settle()
        self.num_reasoning += channels.is_reasoning
        return events

    def _shows_marker(self, token_id: int, told: list[Event]) -> bool:
        """The token is a marker that stands where it means nothing, so that its text is shown. That comes last."""
        if self._channels is None or not self._channels.is_marker(token_id) or not told:
            return False
        last, marker = told[-1], self._detokenizer.hidden_text(token_id)
        return isinstance(last, TextDelta) and last.text.endswith(marker)

    @property
    def _is_text(self) -> bool:
        """What comes next is text."""
        return self._channels is None or self._channels.is_text

    def _end(self, reason: Reason) -> list[Event]:
        """What was held back. Sets `finish`: a stop string may end the choice still."""
        events: list[Event] = []
        if not self.is_cut:
            rest, channels = self._detokenizer.flush(), self._channels
            events = self._without_stops([TextDelta(rest)] if channels is None else channels.text(rest))
        if not self.is_cut and self._channels is not None:
            events += self._without_stops(self._channels.end(is_cut=reason is not Reason.STOP))

        matched = self._stops.matched
        if matched is None and reason is Reason.STOP:
            self.finish = Finish(self._stopped, self._last_id)
        else:
            self.finish = Finish(reason) if matched is None else Finish(self._stopped, matched)
        held = self._stops.flush()
        return [*events, TextDelta(held)] if held else events

    @property
    def _stopped(self) -> Reason:
        """The reason of a choice that was not cut short."""
        with_calls = ends_with_calls(Reason.STOP, self._num_calls, self._num_broken)
        return Reason.CALLS if with_calls else Reason.STOP

    def _without_stops(self, events: Iterable[Event]) -> list[Event]:
        """The last stage, which finds stop strings: what may be shown now of `events`.

        Events behind a stop string are dropped. One that is no text ends a run of text: a stop string lies within one
        run, so text that was held back comes before it."""
        shown: list[Event] = []
        for event in events:
            if self.is_cut:
                break
            text = self._scan(event.text) if isinstance(event, TextDelta) else self._stops.flush()
            if text:
                shown.append(TextDelta(text))
            if not isinstance(event, TextDelta):
                shown.append(event)
                self._num_calls += isinstance(event, CallBegin)
                self._num_broken += isinstance(event, CallBroken)
        return shown

    def _scan(self, text: str, *, is_hidden: bool = False) -> str:
        """The text that may be shown now. Before `min_tokens` stop strings are read, too, but none ends the choice."""
        return self._stops.feed(text, may_stop=self.num_tokens >= self._min_tokens, is_hidden=is_hidden)

    def _step(
        self, events: list[Event], token_ids: tuple[int, ...] = (), scores: tuple[TokenLogprob, ...] = ()
    ) -> Step:
        shown = self._held.shown(_num_chars(events))
        if self.finish is not None:
            shown += self._held.rest(is_cut=self.is_cut)
        return Step(tuple(joined(events)), token_ids, self.finish, shown, scores)


def _num_chars(events: Iterable[Event]) -> int:
    """Characters of text."""
    return sum(len(event.text) for event in events if isinstance(event, TextDelta))
