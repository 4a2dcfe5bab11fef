"""Reads calls that have a tag for each parameter, such as <parameter=KEY>. tag_patterns.py has their formats. Pure.

A parameter's value is plain text: its JSON is that of the type in the tool's schema. Strings are told while they are
written, other values when they are whole. A closing tag counts only before another tag, so that a value may have such
tags in it.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from gateway.text.channels.held import Ends
from gateway.text.channels.readers import MAX_HEADER, Tools
from gateway.text.channels.value_types import STRING, STRING_OR_NULL, escaped, json_of, may_be_null, value_types


@dataclass(frozen=True)
class TagPatterns:
    """What finds the tags of a format. It never changes; all calls share it."""

    header: re.Pattern[str]  # all before the first parameter; group 1 is the name
    header_begins: re.Pattern[str]  # a text of which more may make a header
    bare_header: re.Pattern[str]  # a header behind which the closing marker ends the call
    tag: re.Pattern[str]  # before a value, group 1 is its key; without a key it ends the call
    tag_begins: re.Pattern[str]
    value_end: re.Pattern[str]  # the closing tag of a value before another tag; group "call": it ends the call, too
    closed: re.Pattern[str]  # the closing tag of a value, if a marker follows
    held: Ends  # the end of a value that may become its closing tag
    pad: str  # what stands before a value and is not of it


class _Expect(Enum):
    HEADER = auto()
    TAG = auto()  # of a parameter, or that behind all of them
    VALUE = auto()
    OVER = auto()
    BROKEN = auto()


class TaggedCall:
    """One call."""

    def __init__(self, patterns: TagPatterns, tools: Tools) -> None:
        self.name: str | None = None
        self._patterns, self._tools = patterns, tools
        self._expect = _Expect.HEADER
        self._part = ""  # text whose meaning the next text tells
        self._keys: set[str] = set()
        self._value: Value | None = None  # the one that is being read
        self._told: list[str] = []  # what this text adds to the arguments

    @property
    def is_over(self) -> bool:
        """The call's own closing tag was read."""
        return self._expect is _Expect.OVER

    @property
    def is_broken(self) -> bool:
        """What follows is not of this call."""
        return self._expect is _Expect.BROKEN

    @property
    def is_whole(self) -> bool:
        """See CallReader. The end of a call ends its arguments."""
        return self.is_over

    @property
    def takes_markers(self) -> bool:
        """A value is open."""
        return self._value is not None and self._patterns.closed.fullmatch(self._part) is None

    def read(self, text: str) -> tuple[str, str]:
        """See CallReader."""
        text, self._part, at = self._part + text, "", 0
        while at < len(text) and not (self.is_over or self.is_broken):
            match self._expect:
                case _Expect.HEADER:
                    at = self._read_header(text, at)
                case _Expect.TAG:
                    at = self._read_tag(text, at)
                case _:
                    at = self._read_value(text, at)
        return self._take(), text[at:]

    def break_off(self) -> tuple[str, str]:
        """See CallReader. A marker behind the closing tag of a value ends this and the call, too."""
        part, self._part = self._part, ""
        if self.name is None:
            bare = self._patterns.bare_header.fullmatch(part)
            if bare is None or bare[1] not in self._tools:
                return "", part
            self.name, part = bare[1], ""
        if self._value is not None:
            part = ""
            self._end_value(self._value)
        self._end_call()
        return self._take(), part

    def end(self) -> str:
        """See CallReader."""
        if self._value is not None and self.takes_markers:
            self._told.append(self._value.add(self._part))
        elif self._value is not None:
            self._end_value(self._value)
        return self._take()

    def _read_header(self, text: str, at: int) -> int:
        matched = self._patterns.header.match(text, at, at + MAX_HEADER)
        if matched is not None:
            if matched[1] not in self._tools:
                self._expect = _Expect.BROKEN
                return at
            self.name, self._expect = matched[1], _Expect.TAG
            return matched.end()
        return self._hold(text, at, self._patterns.header_begins)

    def _read_tag(self, text: str, at: int) -> int:
        matched = self._patterns.tag.match(text, at, at + MAX_HEADER)
        if matched is None:
            return self._hold(text, at, self._patterns.tag_begins)

        key = matched[1]
        if key is None:
            self._end_call()
        elif key in self._keys:
            self._expect = _Expect.BROKEN
            return at
        else:
            self._told.append(f'{", " if self._keys else "{"}"{escaped(key)}": ')
            self._keys.add(key)
            self._value = Value(value_types(self._tools[self.name or ""], key), self._patterns.pad)
            self._expect = _Expect.VALUE
        return matched.end()

    def _hold(self, text: str, at: int, begins: re.Pattern[str]) -> int:
        """Keeps what may begin a tag. Other text breaks the call."""
        if len(text) - at < MAX_HEADER and begins.match(text, at) is not None:
            self._part = text[at:]
            return len(text)
        self._expect = _Expect.BROKEN
        return at

    def _read_value(self, text: str, at: int) -> int:
        value = self._value
        assert value is not None
        at += value.skip(text, at)

        ended = self._patterns.value_end.search(text, at)
        if ended is not None:
            self._told.append(value.add(text[at : ended.start()]))
            self._end_value(value)
            if ended.lastgroup == "call":
                self._end_call()
            return ended.end()

        held = self._patterns.held.begin(text, at)
        self._told.append(value.add(text[at:held]))
        self._part = text[held:]
        return len(text)

    def _end_value(self, value: "Value") -> None:
        self._told.append(value.end())
        self._value, self._expect = None, _Expect.TAG

    def _end_call(self) -> None:
        self._told.append("}" if self._keys else "{}")
        self._expect = _Expect.OVER

    def _take(self) -> str:
        told, self._told = "".join(self._told), []
        return told


class Value:
    """The value of a parameter, as JSON. A string is told at once, another value when it is whole."""

    def __init__(self, types: frozenset[str], pad: str) -> None:
        self._types, self._pad = types, pad
        self._read: list[str] = []
        self._is_told = False

    def skip(self, text: str, at: int) -> int:
        """How many characters before the value are not of it."""
        pad, self._pad = self._pad, ""
        return len(pad) if text.startswith(pad, at) else 0

    def add(self, text: str) -> str:
        """What this text adds to the JSON."""
        if not text:
            return ""
        if self._is_told:
            return escaped(text)

        self._read.append(text)
        if self._types == STRING or (self._types == STRING_OR_NULL and not may_be_null("".join(self._read))):
            self._is_told = True
            return '"' + escaped("".join(self._read))
        return ""

    def end(self) -> str:
        """What is left of the JSON."""
        return '"' if self._is_told else json_of("".join(self._read), self._types)
