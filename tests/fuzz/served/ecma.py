"""Patterns of ECMA's dialect in words that Python and Rust read alike: each class of characters is written out."""

import re
from collections.abc import Callable
from typing import Any, Final

Change = Callable[[dict[str, Any]], dict[str, Any]]

_LINE_ENDS: Final = "\n\r\u2028\u2029"
_ANY: Final = "[\0-\U0010ffff]"
_CLASSES: Final = {  # as they stand within brackets
    r"\s": "\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
    r"\S": "\0-\x08\x0e-\x1f!-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    "\u3001-\ufefe\uff00-\U0010ffff",
    r"\d": "0-9",
    r"\D": "\0-/:-\U0010ffff",
    r"\w": "0-9A-Z_a-z",
    r"\W": "\0-/:-@\\[-\\^`{-\U0010ffff",
}
_PIECE: Final = re.compile(r"\\.|\[\^?\]|\[\^?|.", re.DOTALL)
RUST_END: Final = "$"
PYTHON_END: Final = r"\Z"  # `$` of Python's stands before a last line break, too


def with_patterns(end: str) -> Change:
    """A change that writes out the patterns of a schema itself, and not those of the schemas in it."""

    def change(schema: dict[str, Any]) -> dict[str, Any]:
        if isinstance(pattern := schema.get("pattern"), str):
            schema = {**schema, "pattern": written_out(pattern, end)}
        if isinstance(named := schema.get("patternProperties"), dict):
            schema = {**schema, "patternProperties": {written_out(name, end): each for name, each in named.items()}}
        return schema

    return change


def written_out(pattern: str, end: str) -> str:
    """The pattern without dots and letters for classes, and without the classes of nothing and of everything. `end`
    stands for the end of the text."""
    parts: list[str] = []
    in_class = False
    for piece in _PIECE.findall(pattern):
        if piece in _CLASSES:
            parts.append(_CLASSES[piece] if in_class else f"[{_CLASSES[piece]}]")
        elif in_class:
            parts.append(piece)
            in_class = piece != "]"
        elif piece in ("[^]", "[]"):
            parts.append(_ANY if piece == "[^]" else f"[^{_ANY[1:]}")
        else:
            parts.append({".": f"[^{_LINE_ENDS}]", "$": end}.get(piece, piece))
            in_class = piece.startswith("[")
    return "".join(parts)
