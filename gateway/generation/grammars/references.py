"""Follows references in a JSON schema, and finds those that lead back to themselves.

before any value    {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}: llguidance may notice in mid-answer
within a value      {"a": {"properties": {"x": {"$ref": "#/$defs/a"}}}}: endings.py looks whether values end
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

# Keywords of JSON Schema whose values are no schemas, and those that hold schemas by name. The value of any other one,
# also of one that is unknown, may be a schema that a `$ref` names.
VALUES: Final = frozenset("const enum default examples".split())
MAPS: Final = frozenset("properties patternProperties $defs definitions dependentSchemas dependencies".split())
_DEFINITIONS: Final = ("$defs", "definitions")
_OLD_DRAFT: Final = re.compile(r"https?://json-schema\.org/draft-0[467]/schema#?")
_UNIONS: Final = ("anyOf", "oneOf")


def mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy of a schema in which `change` has been made of each schema, the inner ones first. Values in it, such as
    those of `enum`, stay as they are."""
    if not isinstance(schema, dict):
        return schema
    return change({key: _inner(key, value, change) for key, value in schema.items()})


def _inner(key: str, value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The value of a keyword, with the schemas in it changed."""
    if key in VALUES:
        return value
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if key in MAPS and isinstance(value, Mapping):
        return {name: mapped(item, change) for name, item in value.items()}
    return mapped(value, change)


def without_siblings(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of draft 4, 6 or 7, in which nothing that stands beside a reference counts. Definitions stay."""
    if not isinstance(schema.get("$ref"), str):
        return schema
    return {key: value for key, value in schema.items() if key in ("$ref", "$id", "id", *_DEFINITIONS)}


def ignores_siblings(root: Mapping[str, Any]) -> bool:
    """Whether `$schema` names draft 4, 6 or 7."""
    named_draft = root.get("$schema")
    return isinstance(named_draft, str) and _OLD_DRAFT.fullmatch(named_draft) is not None


def check_references(schema: Any) -> None:
    """ValueError for a reference that leads to itself before any value. Definitions that no reference names may."""
    for schema_within in _circular(_schemas(schema), partial(_at_once, root=schema)):
        if "$ref" in schema_within:
            raise ValueError(f"the reference {schema_within['$ref'][:80]!r} leads to itself before any value")


def is_recursive(schema: Any) -> bool:
    """Whether a reference leads to itself, before a value or within one."""
    return any(_circular(_schemas(schema), partial(_reached, root=schema)))


def _circular(
    schemas: Mapping[int, dict[str, Any]], behind: Callable[[dict[str, Any]], Iterator[Any]]
) -> Iterator[dict[str, Any]]:
    """The schemas on a cycle of `behind`, and those that lead to one: what is left when schemas with nothing behind
    them are taken out, again and again."""
    left_behind = {key: others for key, schema in schemas.items() if (others := {*map(id, behind(schema))})}
    predecessors: dict[int, list[int]] = {}  # of each schema: those that have it behind them
    for key, others in left_behind.items():
        for other in others:
            predecessors.setdefault(other, []).append(key)

    ready = [key for key in predecessors if key not in left_behind]
    while ready:
        other = ready.pop()
        for key in predecessors.get(other, ()):
            left_behind[key].discard(other)
            if not left_behind[key]:
                del left_behind[key]
                ready.append(key)
    return (schemas[key] for key in left_behind)


def _schemas(root: Any) -> dict[int, dict[str, Any]]:
    """The schemas in a document that an answer may meet, by id. Values such as those of `enum` are none, unless a
    reference names them. Among definitions are those that references name, or all if a reference names an anchor."""
    schemas, left, later = dict[int, dict[str, Any]](), [root], list[Any]()
    while left or later:
        if not left:
            left, later = later, []
        value = left.pop()
        if isinstance(value, dict) and id(value) not in schemas:
            schemas[id(value)] = value
            for keyword in _DEFINITIONS:
                later += value[keyword].values() if isinstance(value.get(keyword), dict) else []
            left += _reached(value, root)
        if not left and not any(map(_names_an_anchor, schemas.values())):
            later = []
    return schemas


def _names_an_anchor(schema: Mapping[str, Any]) -> bool:
    reference = schema.get("$ref")
    return isinstance(reference, str) and reference != "#" and not reference.startswith("#/")


def _reached(schema: Mapping[str, Any], root: Any) -> Iterator[dict[str, Any]]:
    """The schemas in one, without definitions and values, and those that hold for the same value."""
    left: list[Any] = [
        [*item.values()] if key in MAPS and isinstance(item, dict) else item
        for key, item in schema.items()
        if key not in _DEFINITIONS and key not in VALUES
    ]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            yield value
    yield from _at_once(schema, root)


def _at_once(schema: Mapping[str, Any], root: Any) -> Iterator[dict[str, Any]]:
    """What holds for the same value, or may hold."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and (other := named(reference, root)) is not None:
        yield other
    for keyword in ("allOf", *_UNIONS):
        if isinstance(parts := schema.get(keyword), list):
            yield from (part for part in parts if isinstance(part, dict))


def named(reference: str, root: Any) -> dict[str, Any] | None:
    """The object of the same document that a reference names; None if it names another thing."""
    if not reference.startswith("#") or (reference != "#" and not reference.startswith("#/")):
        return None
    value = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value if isinstance(value, dict) else None
