"""Patterns of names in a JSON schema that name only what `properties` or `required` name, where no other is allowed.

For these llguidance allows a comma behind which no name may follow. So the pattern's schema goes to the properties
themselves, and the pattern away.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer

from gateway.grammar_patterns import NOTHING, UNSPELT
from runtime.grammar_limits import limits

MAX_LOOKS: Final = 1000  # at one pattern and one name, in a schema's object
_QUIET: Final = 0


def with_own_names(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema without such patterns. A name of `required` is one of `properties`, too."""
    named, patterns = schema.get("properties", {}), schema.get("patternProperties")
    if not isinstance(named, dict) or not isinstance(patterns, dict) or schema.get("additionalProperties") is not False:
        return schema
    extra = _required_besides(schema, named)
    names = [*named, *extra]
    bodies = {pattern: whole_names(pattern) for pattern in patterns}
    if not all(bodies.values()) or len(names) * len(patterns) > MAX_LOOKS:
        return schema
    if any(_has_others(body, names) for body in bodies.values()):
        return schema

    found = dict(named)
    for name in names:
        own = [patterns[pattern] for pattern, body in bodies.items() if _matches(body, name)]
        if name in extra and not own:
            return schema  # no answer has it, as llguidance says
        if own:
            found[name] = {"allOf": [*([named[name]] if name in named else []), *own]}
    return {key: value for key, value in schema.items() if key != "patternProperties"} | {"properties": found}


def names_nothing(pattern: str) -> bool:
    """Whether no name has the pattern, because only characters that answers are never made of would do."""
    if NOTHING not in pattern and UNSPELT not in pattern:
        return False
    parts = [part.removeprefix("^").removesuffix("" if _is_escaped(part) else "$") for part in _alternatives(pattern)]
    return not any(_allows_any(f"/{_in_lark(part)}/") for part in parts if part) and all(parts)


def _required_besides(schema: Mapping[str, Any], named: Mapping[str, Any]) -> list[str]:
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    return [name for name in names if isinstance(name, str) and name not in named]


def whole_names(pattern: str) -> str:
    """What a name is from its beginning to its end, as a pattern without anchors; "" if more may stand around it."""
    parts = _alternatives(pattern)
    if not all(len(part) > 1 and part[0] == "^" and part[-1] == "$" and not _is_escaped(part) for part in parts):
        return ""
    return f"({'|'.join(part[1:-1] for part in parts)})"


def _is_escaped(text: str) -> bool:
    """Whether the last character is behind an odd number of backslashes."""
    before = text[:-1]
    return bool((len(before) - len(before.rstrip("\\"))) % 2)


def _alternatives(pattern: str) -> Sequence[str]:
    """The parts of a pattern between its outermost bars."""
    found, depth, is_class, place = [""], 0, False, 0
    while place < len(pattern):
        end = place + (2 if pattern[place] == "\\" else 1)
        each = pattern[place:end]
        is_class = each == "[" or (is_class and each != "]")
        depth += 0 if is_class else (each == "(") - (each == ")")
        if each == "|" and not depth and not is_class:
            found.append("")
        else:
            found[-1] += each
        place = end
    return found


def _has_others(body: str, names: Any) -> bool:
    """Whether some name of the pattern is none of `names`."""
    texts = " | ".join(json.dumps(name) for name in names)
    return _allows_any(f"/{_in_lark(body)}/ & ~({texts})" if texts else f"/{_in_lark(body)}/")


def _matches(body: str, name: str) -> bool:
    return _allows_any(f"/{_in_lark(body)}/ & {json.dumps(name)}")


def _in_lark(body: str) -> str:
    return body.replace("\\/", "/").replace("/", "\\/")


def _allows_any(terminal: str) -> bool:
    """Whether a terminal of Lark's spelling has a text. True for what the library cannot say."""
    grammar = LLMatcher.grammar_from_lark(f'start: "<" NAME ">"\nNAME: {terminal}')
    matcher = LLMatcher(_tokenizer(), grammar, log_level=_QUIET, limits=limits(grammar))
    if matcher.is_error():
        return True
    matcher.consume_token(ord("<"))
    matcher.compute_bitmask()
    return not matcher.is_error()


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")
