"""Grammars in Lark's spelling, in which each JSON schema is made strict.

    start: "it is " %json {"type": "integer"}

The text is cut into lexemes as llguidance cuts it: in a text, a pattern or a comment, `%json` is no schema.
"""

import json
import re
from typing import Final

from gateway.generation.grammars.embedded import embedded_schema

_LEXEME: Final = re.compile(
    r"""
      (?:\#|//) [^\n]*                                                                 # a comment
    | " (?: \\ (?: ["\\/bfnrt] | u[a-fA-F0-9]{4} | x[a-fA-F0-9]{2} ) | [^"\\\x00-\x1f\x7f] )*+ "  # a text
    | / (?: \\[^\n] | [^/\\] )++ /                                                     # a pattern
    | < [^<>\s]++ >                                                                    # a special token
    | % (?P<keyword> json | regex | llguidance )                                       # JSON follows
    | (?P<code> \n | % | [^\#/"<%\n]++ )
    """,
    re.VERBOSE,
)
_JSON: Final = json.JSONDecoder()
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_CUT: Final = re.compile(r"max_tokens[ \t]*=")  # the attribute of a rule


def strict_lark(source: str, *, compact: bool) -> tuple[str, int]:
    """The grammar with strict schemas, and its number of rules. ValueError names the line and what is wrong there."""
    parts: list[str] = []
    num_rules = 0
    on_line: set[str] = set()  # of `max_tokens` and `grammar`, what stands on the line so far
    at = 0
    while at < len(source):
        try:
            lexeme, part, end = _next(source, at, compact=compact)
            on_line = set() if part == "\n" else on_line | _noted(lexeme)
            _check_cut(on_line)
        except ValueError as error:
            number = source.count("\n", 0, at) + 1
            raise ValueError(f"line {number}: {error}") from error

        num_rules += (lexeme["code"] or "").replace("::", "").count(":")
        parts.append(part)
        at = end
    return "".join(parts), num_rules


def _next(source: str, at: int, *, compact: bool) -> tuple[re.Match[str], str, int]:
    """The lexeme at a place, with what stands for it and where it ends. JSON belongs to its keyword."""
    lexeme = _LEXEME.match(source, at)
    if lexeme is None:
        raise ValueError("a text, a pattern or a special token has no end")
    if lexeme["keyword"] is None:
        return lexeme, lexeme[0], lexeme.end()

    spaces = _SPACES.match(source, lexeme.end())
    try:
        value, end = _JSON.raw_decode(source, spaces.end() if spaces else lexeme.end())
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON behind {lexeme[0]}: {error.msg}") from error
    if lexeme["keyword"] != "json":
        return lexeme, source[at:end], end
    breaks = "\n" * source.count("\n", at, end)  # so that errors name the lines of the source
    return lexeme, f"{lexeme[0]} {breaks}{json.dumps(embedded_schema(value, compact=compact))}", end


def _noted(lexeme: re.Match[str]) -> set[str]:
    """Which of the two parts of `_check_cut` a lexeme is."""
    code = lexeme["code"] or ""
    is_grammar = lexeme["keyword"] == "json" or "@" in code
    return ({"grammar"} if is_grammar else set()) | ({"max_tokens"} if _CUT.search(code) else set())


def _check_cut(on_line: set[str]) -> None:
    """llguidance lets a rule with `max_tokens` be a pattern, or one grammar of its own on the same line."""
    if len(on_line) == 2:
        raise ValueError("max_tokens of this rule may end JSON in its middle")
