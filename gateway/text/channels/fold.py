"""A whole choice as the fold of its events, and whether it has ended with calls. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from gateway.words.events import CallBegin, CallBroken, CallDelta, CallEnd, Event, ReasoningDelta, TextDelta


class WholeCall(NamedTuple):
    """A call of a tool. `arguments`: JSON text, cut if the answer ended within it."""

    id: str
    name: str
    arguments: str


class Whole(NamedTuple):
    """The text, the thoughts and the calls of one choice that is over."""

    text: str
    reasoning: str
    calls: tuple[WholeCall, ...]


def fold(events: Iterable[Event]) -> Whole:
    """The whole choice of its events."""
    text, reasoning = [], []
    begun: dict[int, tuple[str, str, list[str]]] = {}
    for event in events:
        match event:
            case TextDelta(piece):
                text.append(piece)
            case ReasoningDelta(piece):
                reasoning.append(piece)
            case CallBegin(number, call_id, name):
                begun[number] = (call_id, name, [])
            case CallDelta(number, json):
                begun[number][2].append(json)
            case CallEnd():
                pass
            case CallBroken(number):
                del begun[number]
    calls = tuple(WholeCall(call_id, name, "".join(pieces)) for call_id, name, pieces in begun.values())
    return Whole("".join(text), "".join(reasoning), calls)


def ends_with_calls(reason: str, num_calls: int, num_broken: int = 0) -> bool:
    """Whether a client is told that the choice has ended in order to call tools. An answer that was cut has not, nor
    one in which a call was broken: a stream has told that call as if it were one."""
    return reason == "stop" and num_calls > 0 and num_broken == 0
