"""Patterns in a JSON schema, for a grammar: control characters without a short escape are taken out of them.

Answers are never made of such characters. llguidance would take one for nothing at all, so that `a\\x01b` allowed `ab`;
and it would allow an escaped quote and backslash for each class with all control characters, such as `[^"]`.
"""

import re
from typing import Final

OPTIONS: Final = "x-guidance"  # llguidance reads its own options from this key; "lenient" makes it ignore keywords
ESCAPES: Final = 'nrbtf\\"'  # letters behind a backslash in texts of an answer
# As classes of Rust's dialect.
UNSPELT: Final = r"\x00-\x07\x0b\x0e-\x1f\x7f"
NOTHING: Final = r"[^\s\S]"
_ANYTHING: Final = r"[\s\S]"
_SPACE: Final = r"[[\s\x{feff}]&&[^\x85]]"  # ECMA's white space: Rust's has U+0085, and lacks U+FEFF
_ANY: Final = r"[^\n\r\x{2028}\x{2029}]"  # ECMA's dot: Rust's has all but the line feed
_NO_SPACE: Final = r"[[^\s\x{feff}]\x85]"
_SHORT: Final = {"[": "\\[", "\\s": _SPACE, "\\S": _NO_SPACE}  # what stands for these in a class
_CODES: Final = frozenset((*range(0x08), 0x0B, *range(0x0E, 0x20), 0x7F))
_DIGITS: Final = {"x": 2, "u": 4}
_MAY_HAVE_THEM: Final = re.compile(r"\[\^|\\[xupPDWSv0c]")  # a class in which this is may have such characters
_ESCAPES: Final = frozenset("dDwWsSbBnrtfvxucpPk")  # letters behind a backslash, in ECMA's dialect
_GROUP: Final = re.compile(r"\(\?(:|=|!|<|[ims]*(-[ims]+)?:)")  # how a group with a question mark begins there
_TIMES: Final = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_REPEAT: Final = re.compile(rf"(?:{_TIMES.pattern})\??")
_ASSERTIONS: Final = ("^", "$", r"\b", r"\B")
_OPERATORS: Final = ("[:", "&&", "--", "~~")  # of Rust's classes, which are plain characters in ECMA's
_IN_CLASS: Final = re.compile(r"\\.|\[", re.DOTALL)


def spelt_pattern(pattern: str) -> str:
    """The same pattern without those characters. ValueError for what llguidance's dialect reads in another way than
    ECMA's."""
    spelt, at = "", 0
    while at < len(pattern):
        repeat = _REPEAT.match(pattern, at)
        if pattern[at] == "[":
            end = _class_end(pattern, at)
            part = _class(pattern[at:end])
        elif pattern[at] == "\\":
            end, part = _escape(pattern, at)
        elif repeat:
            end, part = repeat.end(), repeat[0]
        else:
            _check_group(pattern, at)
            end, part = at + 1, _ANY if pattern[at] == "." else pattern[at]
        if repeat or pattern[at:end] in _ASSERTIONS:
            _check_again(pattern, end)
        spelt, at = spelt + part, end
    return spelt


def _class(text: str) -> str:
    """A class, in llguidance's dialect, which has none without characters, and in which `[` begins another class."""
    if text in ("[]", "[^]"):
        return NOTHING if text == "[]" else _without_them(_ANYTHING)
    text = "[" + _IN_CLASS.sub(lambda match: _SHORT.get(match[0], match[0]), text[1:])
    return _without_them(text) if _MAY_HAVE_THEM.search(text) else text


def _without_them(text: str) -> str:
    return f"[{text}&&[^{UNSPELT}]]"


def _class_end(pattern: str, begin: int) -> int:
    """Where a class ends that begins there. In ECMA's dialect it holds no other one."""
    at = begin + 1 + pattern.startswith("^", begin + 1)
    while at < len(pattern) and pattern[at] != "]":
        if operator := next((mark for mark in _OPERATORS if pattern.startswith(mark, at)), None):
            raise ValueError(f"pattern {pattern[:80]!r}: got {operator!r} in a class, expected '\\' before the second")
        at += 2 if pattern[at] == "\\" else 1
    return min(at + 1, len(pattern))


def _check_group(pattern: str, at: int) -> None:
    """ValueError for a group that only Rust's dialect has, such as flags for the rest of a pattern."""
    if pattern.startswith("(?", at) and not _GROUP.match(pattern, at):
        raise ValueError(f"pattern {pattern[:80]!r}: got {pattern[at : at + 4]!r}, which is no group of ECMA's")


def _check_again(pattern: str, end: int) -> None:
    """ValueError for a repetition of a repetition or an assertion, such as `a++` or `^*`: ECMA's dialect has none."""
    if again := _TIMES.match(pattern, end):
        raise ValueError(f"pattern {pattern[:80]!r}: got {again[0]!r} where nothing is to repeat, expected brackets")


def _escape(pattern: str, begin: int) -> tuple[int, str]:
    """Where an escape outside of classes ends, and what stands in its place."""
    kind = pattern[begin + 1 : begin + 2]
    if not kind:  # llguidance would drop it
        raise ValueError(f"pattern {pattern[:80]!r}: a backslash at the end, expected a character behind it")
    if kind in ("p", "P") and pattern.startswith("{", begin + 2):
        end = pattern.find("}", begin) + 1 or len(pattern)
        return end, _without_them(pattern[begin:end])

    if kind.isascii() and kind.isalpha() and kind not in _ESCAPES:
        raise ValueError(f"pattern {pattern[:80]!r}: got '\\{kind}', which is no escape of ECMA's")
    if kind in ("s", "S"):
        return begin + 2, _SPACE if kind == "s" else _NO_SPACE
    if kind in ("<", ">"):  # Rust takes them for the ends of a word
        return begin + 2, kind
    end = begin + 2
    if kind in _DIGITS:
        end = pattern.find("}", end) + 1 if pattern.startswith("{", end) else end + _DIGITS[kind]
    digits = pattern[begin + 2 : end].strip("{}")
    is_hex = bool(digits) and all(digit in "0123456789abcdefABCDEF" for digit in digits)
    is_unspelt = kind == "v" or (is_hex and int(digits, 16) in _CODES)
    return (end, NOTHING) if is_unspelt else (begin + 2, pattern[begin : begin + 2])
