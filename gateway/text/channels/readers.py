"""What reads one call of a tool: the interface that channels.py knows, and what all formats have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

MAX_HEADER = 256  # characters of a call before its arguments, without the marker

Tools = Mapping[str, Any]  # the JSON schema of each tool's arguments, by the tool's name


class CallReader(Protocol):
    """Reads one call, behind the marker that opens it or behind the call before."""

    name: str | None  # of the tool. None: the header is not whole, or is none

    @property
    def is_over(self) -> bool:
        """The call is whole."""

    @property
    def is_broken(self) -> bool:
        """The text that follows is not of this call."""

    @property
    def is_whole(self) -> bool:
        """What was told of the arguments is a whole JSON object."""

    @property
    def takes_markers(self) -> bool:
        """A marker would be text of an argument."""

    def read(self, text: str) -> tuple[str, str]:
        """What the text adds to the arguments, as JSON, and the text behind the end of the call or behind its break."""

    def break_off(self) -> tuple[str, str]:
        """What is still to be told when a marker ends the call: JSON of the arguments, and text that is not of them. If
        there is no name yet, the marker may make the header whole."""

    def end(self) -> str:
        """What is still to be told of the arguments when the answer ends within the call."""


class CallFormat(Protocol):
    """How a model writes calls: between the markers `opening` and `closing` stand one or more of them."""

    @property
    def opening(self) -> str:
        """The marker before calls."""

    @property
    def closing(self) -> str:
        """The marker behind calls."""

    @property
    def id_shape(self) -> str:
        """The id of a call, with {digest}, {name} and {index}."""

    def reader(self, tools: Tools) -> CallReader:
        """A reader for one call of one of these tools."""


@dataclass(frozen=True)
class ReasoningTags:
    """The markers around thoughts. `is_assumed`: an answer begins with thoughts unless its prompt has closed them."""

    opening: str = "<think>"
    closing: str = "</think>"
    is_assumed: bool = False


@dataclass(frozen=True)
class Format:
    """How a model writes what is not plain text. None: it does not."""

    calls: CallFormat | None = None
    reasoning: ReasoningTags | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers, each once."""
        pairs = [tags for tags in (self.calls, self.reasoning) if tags is not None]
        return tuple(dict.fromkeys(marker for tags in pairs for marker in (tags.opening, tags.closing)))
