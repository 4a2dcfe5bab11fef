"""What one choice of an answer gains, in order: text, reasoning, calls of tools. Dialects write them; pure data.

A choice is a row of Steps, one for each delivery of its tokens. The last one has its Finish. A whole answer is the fold
of these Steps (gateway/serving/gathered.py).
"""

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from gateway.words.scored import ScoredToken
from protocol.logprobs import TokenLogprob


class TextDelta(NamedTuple):
    """More of what the client reads as the answer."""

    text: str


class ReasoningDelta(NamedTuple):
    """More of the thoughts before the answer."""

    text: str


class CallBegin(NamedTuple):
    """A call of a tool begins. `call` counts the calls of a choice from 0."""

    call: int
    id: str
    name: str


class CallDelta(NamedTuple):
    """More of the arguments of call number `call`, as JSON text."""

    call: int
    json: str


class CallEnd(NamedTuple):
    """Call number `call` is over: its arguments are whole, or the answer was cut within them."""

    call: int


class CallBroken(NamedTuple):
    """Call number `call` was none: its arguments are no JSON. A whole answer does not have it. All of it follows as
    text; what was told of it before cannot be taken back from a stream."""

    call: int


Event = TextDelta | ReasoningDelta | CallBegin | CallDelta | CallEnd | CallBroken


class Reason(StrEnum):
    """Why a choice has ended."""

    STOP = "stop"  # EOS, a stop token or a stop string
    LENGTH = "length"  # of the answer, or of the context
    CALLS = "calls"  # STOP behind calls of tools, each of which is whole
    ABORT = "abort"  # another request of the client has ended it; vLLM's name


class Finish(NamedTuple):
    """The end of a choice. `matched`: the stop string or the token that ended it with STOP or CALLS."""

    reason: Reason
    matched: str | int | None = None


class Step(NamedTuple):
    """What one delivery of tokens adds to a choice. Text is held back while a character is incomplete or may begin a
    stop string."""

    events: tuple[Event, ...]  # neighbours of one kind are joined; no text in them is empty
    token_ids: tuple[int, ...] = ()
    finish: Finish | None = None  # of the last Step
    shown: Collection[ScoredToken] = ()  # tokens whose text is shown with this Step, if their scores are asked for
    scores: tuple[TokenLogprob, ...] = ()  # of `token_ids`, each, if they are asked for

    @property
    def text(self) -> str:
        """What it adds to the answer's text."""
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def only_text(self) -> str | None:
        """Its text, if it adds nothing beside but token ids. That is nearly every Step."""
        if self.finish is not None or self.shown:
            return None
        if not self.events:
            return ""
        first = self.events[0]
        return first.text if len(self.events) == 1 and isinstance(first, TextDelta) else None

    @property
    def num_chars(self) -> int:
        """Characters of text, thoughts and arguments."""
        return sum(len(event[-1]) for event in self.events if isinstance(event, TextDelta | ReasoningDelta | CallDelta))


Batch = list[tuple[int, Step]]  # what choices have gained, in order; each with its number in the answer


class Usage(NamedTuple):
    """Tokens of a whole client request. A prompt counts once, whatever its number of choices."""

    prompt: int
    cached: int  # of those, which workers have not computed, because they had their KV
    completion: int  # of all choices
    reasoning: int = 0  # of those, thoughts
