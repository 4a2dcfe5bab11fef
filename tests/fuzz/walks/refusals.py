"""Which reason a refusal gives, and whether it is true of the schema.

a keyword is not supported    it is there
no value follows the schema   none of many candidates does (candidates.py)
another sentence              it is of a known kind, and a keyword that it is about is there
"""

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from gateway.generation.grammars.references import named
from tests.fuzz.served.validators import NotJudged, wrong_with
from tests.fuzz.walks.candidates import candidates

NO_ANSWER: Final = "no value follows the schema"
NO_VALUE_BEHIND: Final = "$ref to what no value follows"
UNKNOWN: Final = "unknown reason"
_PATTERNS: Final = "pattern patternProperties"


@dataclass(frozen=True)
class Kind:
    """A kind of refusal. `row`: its row in the table; `keywords`: one of them is in each schema that is refused so, or
    each that group 1 of the sentence names if there are none here."""

    sentence: re.Pattern[str]
    row: str
    keywords: tuple[str, ...] = ()


KINDS: Final = tuple(
    Kind(re.compile(sentence), row, tuple(keywords.split()))
    for sentence, row, keywords in (
        (r"what a reference names allows no value: .* while processing (#\S*)", NO_VALUE_BEHIND, ""),
        (r"Unsatisfiable schema|^cannot be followed: nothing may follow|which no value follows", NO_ANSWER, ""),
        (r"Unimplemented keys: (\[.*\])", "", ""),
        (r"got the keyword '(\w+)' of JSON Schema's draft 3", "", ""),
        (r"^cannot be followed: (x-guidance)|got '(x-guidance)'", "x-guidance", "x-guidance"),
        (r"(\w+): got the number \S+, expected none beyond", "a number beyond 2^53", ""),
        (r"(\w+): got the number \S+, which is not read exactly", "a number that is not read exactly", ""),
        (r"multipleOf: ", "multipleOf", "multipleOf"),
        (r"beside (multipleOf|patternProperties|\$ref)", "too many ways", ""),
        (r"(\w+): got \S+, expected at most \d+ digits", "bounds", ""),
        (r"(\w+): got \S+ beside the bound .* so near to each other", "bounds", ""),
        (r"(minProperties): got", "", ""),
        (r"min/maxProperties", "minProperties, maxProperties", "minProperties maxProperties"),
        (r"Expected positive integer for '(\w+)'", "a negative length or count", ""),
        (r"oneOf: expected parts", "oneOf", "oneOf"),
        (r"the reference '.*' leads to itself", "$ref to itself", "$ref"),
        (r"circular references with sibling", "$ref to itself beside other keywords", "$ref"),
        (r"Schema intersection stack level exceeded", "$ref to itself beside other keywords", "$ref allOf"),
        (r"Resource '.*' is not present", "$ref to another document", "$ref"),
        (r"Unknown format", "format", "format"),
        (r"Invalid type", "type", "type"),
        (r"(patternProperties): got .* and they leave no other name", "patternProperties of several parts", ""),
        (r"patternProperty regexes .* are not disjoint", "patternProperties that overlap", "patternProperties"),
        (r"pattern '|pattern \"|pattern \\'", "pattern: not ECMA's", _PATTERNS),
        (r"assertion such as|look-around|backreferences are not supported", "pattern: assertions", _PATTERNS),
        (r"regex parse error|[Rr]egex", "pattern: not read", _PATTERNS),
        (r"got the control character", "a control character", ""),
        (r"too (many|large|much)|exceeded|more than \d+", "work", ""),
    )
)


def reason(sentence: str) -> str:
    """The row of the table."""
    kind, found = _kind(sentence)
    if kind is None:
        return UNKNOWN
    return kind.row or ", ".join(_named(found))


def untrue(sentence: str, schema: Any, rng: Random) -> str:
    """Why the reason is not true of a schema; "" if nothing says so."""
    kind, found = _kind(sentence)
    if kind is None:
        return UNKNOWN
    if kind.row in (NO_ANSWER, NO_VALUE_BEHIND):
        return _valid_one(schema, found[1] if found and kind.row == NO_VALUE_BEHIND else "#", rng)
    keys = _keys(schema)
    if kind.keywords:
        return "" if keys.intersection(kind.keywords) else f"none of {kind.keywords} is in the schema"
    missing = [each for each in _named(found) if each not in keys]
    return f"{missing} is not in the schema" if missing else ""


def _kind(sentence: str) -> tuple[Kind | None, re.Match[str] | None]:
    for kind in KINDS:
        if found := kind.sentence.search(sentence):
            return kind, found
    return None, None


def _named(found: re.Match[str] | None) -> list[str]:
    """The keywords in a sentence: one, or a list as JSON has it."""
    if found is None or not found.re.groups or not found[1]:
        return []
    if not found[1].startswith("["):
        return [found[1]]
    names: list[str] = json.loads(found[1])
    return names


def _keys(schema: Any) -> set[str]:
    keys, left = set[str](), [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            keys |= value.keys()
            left += value.values()
        elif isinstance(value, list):
            left += value
    return keys


def _valid_one(root: Any, reference: str, rng: Random) -> str:
    """A value that is valid where a reference leads, of which a refusal says that none is."""
    schema: Any = root if reference == "#" else named(reference, root)
    judged = root if reference == "#" else {**_without_siblings(root), "$ref": reference}
    for text in candidates(schema, root, rng):
        try:
            if not wrong_with(text, judged):
                return f"{text[:200]} follows {reference}"
        except NotJudged:
            return ""
    return ""


def _without_siblings(root: dict[str, Any]) -> dict[str, Any]:
    """What references lead to, beside which a reference stands alone."""
    return {key: root[key] for key in ("$defs", "definitions", "$schema") if key in root}
