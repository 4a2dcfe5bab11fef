"""Calls with a tag for the tool and one for each parameter. Qwen3-Coder and MiniMax write these. Pure.

<function=NAME>           a parameter's value is plain text: its JSON is that of the type in the tool's schema.
<parameter=KEY>           Strings are told while they are written, other values when they are whole.
VALUE                     A closing tag counts only before another tag, so that a value may have such tags in it.
</parameter>
</function>
"""

import re
from dataclasses import asdict, dataclass
from enum import Enum, auto
from functools import cached_property

from gateway.text.channels.held import Ends, beginnings
from gateway.text.channels.readers import MAX_HEADER, CallReader, Tools
from gateway.text.channels.value_types import STRING, STRING_OR_NULL, escaped, json_of, may_be_null, value_types

MAX_GAP = 64  # characters of white space between two tags


@dataclass(frozen=True)
class TaggedCalls:
    """A format of calls with tags. `pad`: what stands around each value, once, and is not of it."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    id_shape: str = "call_{digest}"
    name_opening: str = "<function="
    name_closing: str = ">"
    call_closing: str = "</function>"
    key_opening: str = "<parameter="
    key_closing: str = ">"
    value_closing: str = "</parameter>"
    pad: str = "\n"

    def reader(self, tools: Tools) -> CallReader:
        """A reader for one call."""
        return TaggedCall(self, tools)

    @cached_property
    def patterns(self) -> "Patterns":
        """What finds these tags."""
        return Patterns(self)


class Patterns:
    """What finds the tags of a format. It never changes; all calls share it."""

    def __init__(self, form: TaggedCalls) -> None:
        quoted = {name: re.escape(tag) for name, tag in asdict(form).items()}
        self.header = re.compile(r"\s*{name_opening}([^<>\n]+?){name_closing}".format(**quoted))
        self.tag = re.compile(r"\s*(?:{key_opening}([^\n]+?){key_closing}|{call_closing})".format(**quoted))

        names, keys = beginnings([form.name_opening]), beginnings([form.key_opening, form.call_closing])
        self.header_begins = re.compile(rf"\s*(?:{names}|{quoted['name_opening']}[^<>\n]*)?\Z")
        self.tag_begins = re.compile(rf"\s*(?:{keys}|{quoted['key_opening']}[^\n]*)?\Z")

        # a value ends with its closing tag before the next tag, or, without one, with that of the call before another
        pad, gap = (f"(?:{quoted['pad']})?", rf"\s{{0,{MAX_GAP}}}")
        value, call = f"{pad}{quoted['value_closing']}{gap}", f"{pad}{quoted['call_closing']}{gap}"
        following = f"(?={quoted['key_opening']}|{quoted['call_closing']})"
        self.value_end = re.compile(f"{value}{following}|(?P<call>{call})(?={quoted['name_opening']})")
        self.closed = re.compile(f"{value}|{call}")

        closings = [tag for closing in (form.value_closing, form.call_closing) for tag in (closing, form.pad + closing)]
        self.held = Ends(
            f"{value}(?:{keys})?|{call}(?:{names})?|{beginnings(closings)}",
            MAX_GAP + 2 * max(map(len, (*closings, form.key_opening, form.name_opening))),
        )


class _Expect(Enum):
    HEADER = auto()
    TAG = auto()  # of a parameter, or that behind all of them
    VALUE = auto()
    OVER = auto()
    BROKEN = auto()


class TaggedCall:
    """One call."""

    def __init__(self, form: TaggedCalls, tools: Tools) -> None:
        self.name: str | None = None
        self._format, self._patterns, self._tools = form, form.patterns, tools
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
            self._value = Value(value_types(self._tools[self.name or ""], key), self._format.pad)
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
            if ended["call"] is not None:
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
