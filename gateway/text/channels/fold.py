"""A whole choice as the fold of its events, and whether it has ended with calls. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
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


class GatheredText:
    """A text that grows by pieces."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.num_chars = 0

    def add(self, piece: str) -> None:
        """Appends a piece."""
        self.pieces.append(piece)
        self.num_chars += len(piece)

    @property
    def whole(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    @property
    def num_bytes(self) -> int:
        """Its memory, at most."""
        return 4 * self.num_chars + 64 * len(self.pieces)


@dataclass(frozen=True)
class GatheredCall:
    """A call of a tool. `arguments`: JSON text."""

    id: str
    name: str
    arguments: GatheredText = field(default_factory=GatheredText)


class Folded:
    """One choice, as far as it is told: text, thoughts and calls."""

    def __init__(self) -> None:
        self.text, self.reasoning = GatheredText(), GatheredText()
        self._calls: dict[int, GatheredCall] = {}  # by number

    def add(self, event: Event) -> None:
        """Adds what the choice has gained."""
        match event:
            case TextDelta(text):
                self.text.add(text)
            case ReasoningDelta(text):
                self.reasoning.add(text)
            case CallBegin(call, call_id, name):
                self._calls[call] = GatheredCall(call_id, name)
            case CallDelta(call, json):
                self._calls[call].arguments.add(json)
            case CallEnd():
                pass  # a call tells all that it has, whole or cut
            case CallBroken(call):
                del self._calls[call]

    @property
    def calls(self) -> list[GatheredCall]:
        """Those that are not broken, in order."""
        return list(self._calls.values())

    @property
    def texts(self) -> tuple[GatheredText, ...]:
        """All of them: of the answer, the thoughts and the calls."""
        return (self.text, self.reasoning, *(call.arguments for call in self.calls))


def fold(events: Iterable[Event]) -> Whole:
    """The whole choice of its events."""
    folded = Folded()
    for event in events:
        folded.add(event)
    calls = tuple(WholeCall(call.id, call.name, call.arguments.whole) for call in folded.calls)
    return Whole(folded.text.whole, folded.reasoning.whole, calls)


def ends_with_calls(reason: str, num_calls: int, num_broken: int = 0) -> bool:
    """Whether a client is told that the choice has ended in order to call tools. An answer that was cut has not, nor
    one in which a call was broken: a stream has told that call as if it were one."""
    return reason == "stop" and num_calls > 0 and num_broken == 0
