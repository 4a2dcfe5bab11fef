"""Calls as JSON objects between markers: {"name": "f", "arguments": {...}}. Hermes and Qwen write these. Pure.

The keys stand in any order. Arguments before the name are held until the name is read. Other keys are read over.
"""

import json
from dataclasses import dataclass
from enum import Enum, auto

from gateway.text.channels.json_value import WHITE_SPACE, JsonValue
from gateway.text.channels.readers import MAX_HEADER, CallReader, Tools


@dataclass(frozen=True)
class JsonCalls:
    """A format of calls as JSON objects."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    id_shape: str = "call_{digest}"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")

    def reader(self, tools: Tools) -> CallReader:
        """A reader for one call."""
        return JsonCall(self, tools)


class _Expect(Enum):
    OBJECT = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    VALUE = auto()
    COMMA_OR_END = auto()
    OVER = auto()
    BROKEN = auto()


class JsonCall:
    """One call. Each of its keys and values is read by a JsonValue, what stands between them here."""

    def __init__(self, form: JsonCalls, tools: Tools) -> None:
        self.name: str | None = None
        self._argument_keys, self._tools = form.argument_keys, tools
        self._expect = _Expect.OBJECT
        self._value: JsonValue | None = None  # the key or the value that is being read
        self._read: list[str] = []  # what was read of it
        self._key: str | None = None  # the key of the value; None: a key is being read
        self._known_name: str | None = None  # the header may still go on
        self._arguments: list[str] | None = None  # those before the name; empty if the name came first
        self._has_arguments = False  # they are whole
        self._num_header = 0  # characters
        self._told: list[str] = []  # what this text adds to the arguments

    @property
    def is_over(self) -> bool:
        """The object is whole, and was a call."""
        return self._expect is _Expect.OVER

    @property
    def is_broken(self) -> bool:
        """What follows is not of this call."""
        return self._expect is _Expect.BROKEN

    @property
    def is_whole(self) -> bool:
        """See CallReader. The object around the arguments may be cut."""
        return self._has_arguments

    @property
    def takes_markers(self) -> bool:
        """A string is open."""
        return self._value is not None and self._value.is_in_string

    def read(self, text: str) -> tuple[str, str]:
        """See CallReader."""
        at = 0
        while at < len(text) and not (self.is_over or self.is_broken):
            if self._value is not None:
                at = self._read_value(self._value, text, at)
            else:
                at = self._structure(text[at], at)

        told, self._told = "".join(self._told), []
        return told, text[at:]

    def break_off(self) -> tuple[str, str]:
        """See CallReader."""
        return "", ""

    def end(self) -> str:
        """See CallReader."""
        return ""

    def _structure(self, char: str, at: int) -> int:
        """Reads a character between keys and values. Returns where the next one is read."""
        match self._expect:
            case _Expect.KEY | _Expect.KEY_OR_END if char == '"':
                self._value, self._key = JsonValue(), None
                return at
            case _Expect.VALUE if self._begins_value(char):
                self._value = JsonValue()
                return at
        self._count(1)
        match self._expect:
            case _Expect.BROKEN:
                pass
            case _ if char in WHITE_SPACE:
                pass
            case _Expect.OBJECT if char == "{":
                self._expect = _Expect.KEY_OR_END
            case _Expect.COLON if char == ":":
                self._expect = _Expect.VALUE
            case _Expect.COMMA_OR_END if char == ",":
                self._expect = _Expect.KEY
            case _Expect.COMMA_OR_END if char == "}" and self._has_name():
                self._expect = _Expect.OVER
            case _:
                self._expect = _Expect.BROKEN
        return at if self.is_broken else at + 1

    def _begins_value(self, char: str) -> bool:
        """Whether the value of `_key` begins with this character, as a call's may. Arguments end the header."""
        if char in WHITE_SPACE:
            return False
        if self._key == "name":
            return char == '"' and self._known_name is None
        if self._key in self._argument_keys:
            if char != "{" or self._arguments is not None:
                return False
            self._arguments = []
            self.name = self._known_name
        return True

    def _read_value(self, value: JsonValue, text: str, at: int) -> int:
        """Reads on in a key or a value. Returns where reading has stopped."""
        read, end = value.read(text, at)
        if self._key not in self._argument_keys:
            self._count(end - at)
            self._read.append(read)
        elif self.name is not None:
            self._told.append(read)
        elif self._arguments is not None:
            self._arguments.append(read)

        if value.is_broken:
            self._expect = _Expect.BROKEN
        elif value.is_over and not self.is_broken:
            self._end_value()
        return end

    def _end_value(self) -> None:
        read, self._read, self._value = "".join(self._read), [], None
        if self._key is None:
            self._key, self._expect = json.loads(read), _Expect.COLON
            return

        self._expect = _Expect.COMMA_OR_END
        self._has_arguments |= self._key in self._argument_keys
        if self._key == "name":
            self._known_name = json.loads(read)
            if self._known_name not in self._tools:
                self._expect = _Expect.BROKEN
            elif self._arguments is not None:
                self.name, self._told = self._known_name, self._arguments

    def _has_name(self) -> bool:
        """At the end of the object: it was a call. Without arguments these are an empty object."""
        if self.name is None and self._known_name is not None:
            self.name, self._has_arguments = self._known_name, True
            self._told.append("{}")
        return self.name is not None

    def _count(self, num_chars: int) -> None:
        """Notes characters of the header, until it is whole."""
        self._num_header += num_chars
        if self.name is None and self._num_header > MAX_HEADER:
            self._expect = _Expect.BROKEN
