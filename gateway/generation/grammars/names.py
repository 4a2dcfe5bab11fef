"""Names in the objects of a JSON schema: behind each comma that an answer may write, a name may follow.

llguidance goes on behind a comma with a name that a pattern of `patternProperties` matches, or with another one. Of
both it leaves out the names of `properties`, and of the others those of all patterns. It does not see where none is
left, and then nothing may follow the comma. So

patterns that match only names of the document        their schemas go to `properties`: {"^a$": S} --> {"a": S}
patterns that match all names, or all but such ones   no other name is allowed
patterns that do so only beside those of other parts  refused, if these parts of the schema hold together
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer

from gateway.generation.grammars.patterns import ESCAPES, NOTHING, OPTIONS, UNSPELT
from gateway.generation.grammars.references import mapped
from gateway.generation.grammars.together import Parts, ways
from runtime.grammar_limits import limits

MAX_LOOKS: Final = 100_000  # at one pattern and one name of a document
_NULL: Final = {"type": "null"}
_QUIET: Final = 0


@dataclass
class Names:
    """The names in a document. It remembers which sets of names have others, and which names a pattern matches."""

    names: frozenset[str]
    _others: dict[tuple[str, bool], bool] = field(default_factory=dict)
    _matching: dict[str, frozenset[str]] = field(default_factory=dict)
    _num_looks: int = 0

    def with_own(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The same schema, with a name left wherever one may follow. ValueError for too many patterns and names."""
        named, patterns = schema.get("properties", {}), schema.get("patternProperties")
        if not isinstance(named, dict) or not isinstance(patterns, dict):
            return schema
        properties, left = dict(named), dict(patterns)
        for pattern, schema_of in patterns.items():
            if _may_be_few(pattern) and self._are_all(pattern, is_inside=True):
                del left[pattern]
                for name in self._those(pattern, is_inside=True):
                    properties[name] = {"allOf": [properties[name], schema_of]} if name in properties else schema_of

        others = schema.get("additionalProperties", True)
        if left and others is not False and self._are_all(one_of(left), is_inside=False):
            for name in self._those(one_of(left), is_inside=False):
                properties.setdefault(name, others)
            others = False
        return _with(schema, properties, left, others)

    def check_together(self, root: Any) -> None:
        """ValueError for patterns that leave no other name, but do so only where parts of a schema hold together."""
        patterns = {pattern for part in _schemas(root) if _is_open(part) for pattern in part["patternProperties"]}
        if len(patterns) < 2 or not self._are_all(one_of(sorted(patterns)), is_inside=False):
            return
        for parts in ways(root, "patternProperties"):
            if (named := _named_by_parts(parts)) and self._are_all(one_of(named), is_inside=False):
                raise ValueError(
                    f"patternProperties: got {len(named)} patterns in parts of the schema that hold together, and they"
                    " leave no other name, expected them in one part"
                )

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a pattern, as llguidance reads it, matches a name of the document."""
        if pattern not in self._matching:
            self._matching[pattern] = frozenset(self._those(pattern, is_inside=True))
        return name in self._matching[pattern]

    def _are_all(self, pattern: str, *, is_inside: bool) -> bool:
        """Whether the document has all names that match a pattern, or all that do not."""
        key = (pattern, is_inside)
        if key not in self._others:
            self._others[key] = self._has_others(pattern, is_inside=is_inside)
        return not self._others[key]

    def _has_others(self, pattern: str, *, is_inside: bool) -> bool:
        if not is_inside:  # mostly there are longer names than those of the document
            shorter = rf"^[\s\S]{{0,{max(map(len, self.names), default=0)}}}$"
            if _goes_on(one_of([pattern, shorter]), is_inside=False):
                return True
        return _goes_on(pattern, is_inside=is_inside, without=self._those(pattern, is_inside=is_inside))

    def _those(self, pattern: str, *, is_inside: bool) -> Sequence[str]:
        """The names of the document that match a pattern, or that do not; in one order."""
        self._num_looks += len(self.names)
        if self._num_looks > MAX_LOOKS:
            raise ValueError(f"patternProperties: got too many patterns beside {len(self.names)} names of properties")
        matcher = _matcher(pattern, is_inside=is_inside)
        answers = {name: f"{{{json.dumps(name, ensure_ascii=False)}:null}}".encode() for name in sorted(self.names)}
        return [name for name, answer in answers.items() if matcher.validate_tokens([*answer]) == len(answer)]


def names_of(root: Any) -> Names:
    """The names in `properties` and `required` of all schemas in a document."""
    names = set[str]()
    for schema in _schemas(root):
        for keyword, kind in (("properties", dict), ("required", list)):
            given = schema.get(keyword)
            names.update(name for name in given if isinstance(name, str)) if isinstance(given, kind) else ()
    return Names(frozenset(names))


def one_of(patterns: Iterable[str]) -> str:
    """A pattern of what matches one of these."""
    return "|".join(pattern or "(?:)" for pattern in patterns)


def _schemas(root: Any) -> Sequence[dict[str, Any]]:
    """All schemas in a document."""
    schemas: list[dict[str, Any]] = []

    def seen(schema: dict[str, Any]) -> dict[str, Any]:
        schemas.append(schema)
        return schema

    mapped(root, seen)
    return schemas


def _with(
    schema: Mapping[str, Any], named: Mapping[str, Any], patterns: Mapping[str, Any], others: Any
) -> dict[str, Any]:
    """The same schema with other names. What it did not have, and what says nothing, is left out."""
    changed = {**schema, "properties": named, "patternProperties": patterns, "additionalProperties": others}
    for keyword, nothing in (("properties", {}), ("patternProperties", {}), ("additionalProperties", True)):
        if changed[keyword] == nothing and schema.get(keyword) != nothing:
            del changed[keyword]
    return changed


def _is_open(part: Mapping[str, Any]) -> bool:
    """Whether an object has patterns, and names besides."""
    has_patterns = isinstance(part.get("patternProperties"), dict)
    return has_patterns and part.get("additionalProperties", True) is not False


def _named_by_parts(parts: Parts) -> Sequence[str]:
    """The patterns of parts that hold together; none if one part has them all, or allows no other names."""
    lists = [frozenset(part["patternProperties"]) for part in parts if isinstance(part.get("patternProperties"), dict)]
    patterns = frozenset[str]().union(*lists)
    if any(part.get("additionalProperties") is False for part in parts) or patterns in lists:
        return ()
    return sorted(patterns)


def _may_be_few(pattern: str) -> bool:
    """Whether a pattern may match few names: none, or whole ones only. Others match longer and longer names."""
    parts = _alternatives(pattern)
    return all(
        (part[:1] == "^" and part[1:] and part[-1] == "$" and not _is_escaped(part))
        or NOTHING in part
        or UNSPELT in part
        for part in parts
    )


def _is_escaped(text: str) -> bool:
    """Whether the last character is behind an odd number of backslashes."""
    before = text[:-1]
    return bool((len(before) - len(before.rstrip("\\"))) % 2)


def _alternatives(pattern: str) -> Sequence[str]:
    """The parts of a pattern between its outermost bars."""
    alternatives, depth, class_depth, at = [""], 0, 0, 0
    while at < len(pattern):
        end = at + (2 if pattern[at] == "\\" else 1)
        char = pattern[at:end]
        class_depth = max(0, class_depth + (char == "[") - (char == "]"))
        depth += 0 if class_depth else (char == "(") - (char == ")")
        if char == "|" and not depth and not class_depth:
            alternatives.append("")
        else:
            alternatives[-1] += char
        at = end
    return alternatives


# ---- what llguidance finds in names ----


def _goes_on(pattern: str, *, is_inside: bool, without: Iterable[str] = ()) -> bool:
    """Whether there is a name that matches a pattern, or one that does not, besides those `without`. True for what the
    library cannot say."""
    matcher = _matcher(pattern, is_inside=is_inside, without=without)
    if matcher.is_error():
        return True
    matcher.consume_token(ord("{"))
    matcher.compute_bitmask()
    return not matcher.is_error()


def _matcher(pattern: str, *, is_inside: bool, without: Iterable[str] = ()) -> LLMatcher:
    """Objects of such names, with at least one. It reads bytes."""
    schema = {
        "type": "object",
        "properties": dict.fromkeys(without, False),
        "patternProperties": {pattern: _NULL if is_inside else False},
        "additionalProperties": False if is_inside else _NULL,
        "minProperties": 1,
        OPTIONS: {"whitespace_flexible": False, "json_allowed_escapes": ESCAPES},
    }
    grammar = LLMatcher.grammar_from_json_schema(schema)
    return LLMatcher(_tokenizer(), grammar, log_level=_QUIET, limits=limits(grammar))


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")
