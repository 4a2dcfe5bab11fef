"""Which JSON a parameter's plain text stands for, by the schema of its tool. Pure.

Formats with a tag for each parameter write strings as they are, without quotes. So `5` is a number or a text as the
schema has it, and a text if the schema has no type.
"""

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from gateway.text.channels.json_value import whole_json

STRING = frozenset({"string"})
STRING_OR_NULL = frozenset({"string", "null"})
NULLS = ("null", "None")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # some templates print values as Python does
MAX_LOOKS = 200  # at schemas of one parameter
_TYPES = {str: "string", dict: "object", list: "array", bool: "boolean", type(None): "null"}
_KINDS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}


def value_types(schema: Any, key: str) -> frozenset[str]:
    """The types that a tool's schema allows for its parameter `key`, by the names that schemas have for them."""
    given = _field(_field(schema, "properties"), key)
    if given is None:
        given = _field(schema, "additionalProperties")

    types: set[str] = set()
    schemas = [given]  # those within it behind it
    for looked_at in islice(schemas, MAX_LOOKS):
        if not isinstance(looked_at, Mapping):
            continue
        types |= _own_types(looked_at)
        for word in ("anyOf", "oneOf", "allOf"):
            options = looked_at.get(word)
            schemas += options[:MAX_LOOKS] if isinstance(options, list) else []
        schemas.append(_referred(schema, looked_at.get("$ref")))

    return frozenset(types) or STRING


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON of a parameter's text: a value of one of the types as it is written, else a string."""
    word = text.strip()
    read = whole_json(PYTHON_WORDS.get(word, word))
    if read is None:
        return json.dumps(text, ensure_ascii=False)

    kind = _KINDS.get(read[0], "number")
    is_wanted = kind in types and kind != "string"
    is_wanted |= kind == "number" and "integer" in types
    is_wanted |= kind == "null" and "string" not in types
    return read if is_wanted else json.dumps(text, ensure_ascii=False)


def may_be_null(text: str) -> bool:
    """The text, or more of it, may be null."""
    return any(word.startswith(text) for word in NULLS)


def escaped(text: str) -> str:
    """A piece of a JSON string, without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {name for name in named if isinstance(name, str)}

    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    if "const" in schema:
        values = [schema["const"]]
    return {_TYPES.get(type(value), "number") for value in values[:MAX_LOOKS]}


def _referred(schema: Any, reference: Any) -> Any:
    """What `#/$defs/NAME` leads to in the schema; None for other references."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        schema = _field(schema, step.replace("~1", "/").replace("~0", "~"))
    return schema


def _field(schema: Any, name: str) -> Any:
    return schema.get(name) if isinstance(schema, Mapping) else None
