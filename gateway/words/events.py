"""What one choice of an answer gains, in order: text, reasoning, calls of tools. Dialects write them; pure data."""

from typing import NamedTuple


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
    """Call number `call` is over: its arguments are whole, or the answer ended within them."""

    call: int


Event = TextDelta | ReasoningDelta | CallBegin | CallDelta | CallEnd
