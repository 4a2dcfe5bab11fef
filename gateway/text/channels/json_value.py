"""Reads one JSON value, however its text is cut: where it ends, and where it is no JSON. Pure.

The text passes as it was written. Only a raw control character in a string is escaped, because no JSON parser takes it
and models write line breaks so.
"""

import json
import re
from enum import Enum, auto

from gateway.words.strict_json import MAX_DEPTH

WHITE_SPACE = " \t\r\n"  # what JSON takes as such
_WHITE = re.compile(f"[{WHITE_SPACE}]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_DIGITS = "0123456789"


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()  # behind "["
    KEY = auto()
    KEY_OR_END = auto()  # behind "{"
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()  # digits of \u
    WORD = auto()  # of a number, true, false or null
    OVER = auto()
    BROKEN = auto()


def _words() -> dict[str, dict[str, str]]:
    """The states of a number, and of each word by what of it was read; which character leads where."""
    digits = {
        "-": {"0": "zero", **dict.fromkeys(_DIGITS[1:], "int")},
        "zero": {".": "dot", "e": "exp", "E": "exp"},
        "int": {".": "dot", "e": "exp", "E": "exp", **dict.fromkeys(_DIGITS, "int")},
        "dot": dict.fromkeys(_DIGITS, "fraction"),
        "fraction": {"e": "exp", "E": "exp", **dict.fromkeys(_DIGITS, "fraction")},
        "exp": {"+": "sign", "-": "sign", **dict.fromkeys(_DIGITS, "power")},
        "sign": dict.fromkeys(_DIGITS, "power"),
        "power": dict.fromkeys(_DIGITS, "power"),
    }
    start = {"-": "-", "0": "zero", **dict.fromkeys(_DIGITS[1:], "int")}

    words: dict[str, dict[str, str]] = {"": start, **digits}
    for word in ("true", "false", "null"):
        start[word[0]] = word[0]
        for end in range(1, len(word)):
            words[word[:end]] = {word[end]: word[: end + 1]}
        words[word] = {}
    return words


_WORDS = _words()
_WHOLE_WORDS = frozenset({"zero", "int", "fraction", "power", "true", "false", "null"})


class JsonValue:
    """One JSON value. White space may stand before it; nothing behind its end is read."""

    def __init__(self) -> None:
        self._expect = _Expect.VALUE
        self._closers: list[str] = []  # the bracket that ends each container around the next character
        self._is_key = False  # the string that is being read
        self._num_hex = 0  # digits of \u that are still to come
        self._word = ""  # the state of _WORDS

    @property
    def is_over(self) -> bool:
        """The value is whole. A number is whole when another character follows."""
        return self._expect is _Expect.OVER

    @property
    def is_broken(self) -> bool:
        """The next character cannot follow in any JSON value."""
        return self._expect is _Expect.BROKEN

    @property
    def is_in_string(self) -> bool:
        """Any character may follow, because a string is open."""
        return self._expect is _Expect.STRING

    def read(self, text: str, at: int) -> tuple[str, int]:
        """Reads from `at` on. Returns the JSON, and where reading has stopped: at the end of the text, behind the
        value, or at the character that breaks it."""
        read, begin = [], at
        while at < len(text) and self._expect not in (_Expect.OVER, _Expect.BROKEN):
            if self._expect is not _Expect.STRING:
                at = self._step(text, at)
                continue

            plain = _PLAIN.match(text, at)
            at = at if plain is None else plain.end()
            if at == len(text):
                break
            if text[at] == '"':
                self._end_string()
            elif text[at] == "\\":
                self._expect = _Expect.ESCAPE
            else:
                read += [text[begin:at], json.dumps(text[at])[1:-1]]
                begin = at + 1
            at += 1

        read.append(text[begin:at])
        return "".join(read), at

    def _step(self, text: str, at: int) -> int:
        """Reads a character outside of plain strings, and white space before it. Returns where the next one is read."""
        match self._expect:
            case _Expect.ESCAPE | _Expect.HEX:
                self._escape(text[at])
            case _Expect.WORD:
                return self._go_on_with_word(text[at], at)
            case _:
                white = _WHITE.match(text, at)
                at = at if white is None else white.end()
                if at == len(text):
                    return at
                self._structure(text[at])
        return at if self.is_broken else at + 1

    def _escape(self, char: str) -> None:
        if self._expect is _Expect.ESCAPE:
            self._num_hex = 4 if char == "u" else 0
            is_known = char in '"\\/bfnrtu'
        else:
            self._num_hex -= 1
            is_known = char in "0123456789abcdefABCDEF"
        self._expect = _Expect.BROKEN if not is_known else _Expect.HEX if self._num_hex else _Expect.STRING

    def _go_on_with_word(self, char: str, at: int) -> int:
        following = _WORDS[self._word].get(char)
        if following is not None:
            self._word = following
            return at + 1
        if self._word in _WHOLE_WORDS:
            self._end_value()
        else:
            self._expect = _Expect.BROKEN
        return at

    def _structure(self, char: str) -> None:
        match self._expect:
            case _Expect.VALUE | _Expect.VALUE_OR_END:
                self._begin_value(char)
            case _Expect.KEY | _Expect.KEY_OR_END if char == '"':
                self._expect, self._is_key = _Expect.STRING, True
            case _Expect.KEY_OR_END if char == "}":
                self._end_container()
            case _Expect.COLON if char == ":":
                self._expect = _Expect.VALUE
            case _Expect.COMMA_OR_END if char == ",":
                self._expect = _Expect.KEY if self._closers[-1] == "}" else _Expect.VALUE
            case _Expect.COMMA_OR_END if char == self._closers[-1]:
                self._end_container()
            case _:
                self._expect = _Expect.BROKEN

    def _begin_value(self, char: str) -> None:
        if char == '"':
            self._expect, self._is_key = _Expect.STRING, False
        elif char == "]" and self._expect is _Expect.VALUE_OR_END:
            self._end_container()
        elif char in "{[" and len(self._closers) < MAX_DEPTH:
            self._closers.append("}" if char == "{" else "]")
            self._expect = _Expect.KEY_OR_END if char == "{" else _Expect.VALUE_OR_END
        elif char in _WORDS[""]:
            self._expect, self._word = _Expect.WORD, _WORDS[""][char]
        else:
            self._expect = _Expect.BROKEN

    def _end_string(self) -> None:
        if self._is_key:
            self._expect = _Expect.COLON
        else:
            self._end_value()

    def _end_container(self) -> None:
        self._closers.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._expect = _Expect.COMMA_OR_END if self._closers else _Expect.OVER


def whole_json(text: str) -> str | None:
    """The JSON of a text that is one value, with white space around it or none; None: it is no JSON."""
    value = JsonValue()
    read, end = value.read(text + "\n", 0)
    return read.strip(WHITE_SPACE) if value.is_over and not text[end:].strip(WHITE_SPACE) else None
