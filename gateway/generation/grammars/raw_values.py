"""Grammars of arguments that stand between tags: strings without quotes, other values as JSON. Pure.

    <parameter=KEY>\\nVALUE\\n</parameter>      a string goes on up to its closing tag, which it cannot have within

value_types.py tells which JSON a reader makes of a value. Only values are allowed that it reads as they were meant.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.generation.grammars.patterns import ESCAPES, OPTIONS
from gateway.generation.grammars.references import named
from gateway.generation.grammars.schemas import strict_schema
from gateway.generation.grammars.together import mapping
from gateway.text.channels.value_types import NULLS, STRING, STRING_OR_NULL, value_types

AS_TOJSON: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_DEPTH: Final = 32  # of references and unions within one another
_NOTES: Final = frozenset("title description default examples $comment deprecated readOnly writeOnly".split())
_DEFINITIONS: Final = ("$defs", "definitions")
_OF_OBJECTS: Final = frozenset(("type", "properties", "required", "additionalProperties", "$schema", *_DEFINITIONS))
_OF_STRINGS: Final = frozenset("type enum const minLength maxLength".split())
_OF_OTHERS: Final = frozenset(
    (
        "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf items prefixItems minItems maxItems properties"
        " required additionalProperties patternProperties minProperties maxProperties"
    ).split()
)
_LIKE_JSON: Final = r"[\s\x1c-\x1f]*(true|false|null|True|False|None|[\x22\[\{0-9-])"  # such texts are no strings


@dataclass(frozen=True)
class TagLayout:
    """The tags of a format, with what stands around them. `closings`: texts that a string cannot have within."""

    name_opening: str
    name_closing: str
    key_opening: str
    key_closing: str
    value_opening: str
    value_closing: str
    call_closing: str
    closings: tuple[str, ...]

    @classmethod
    def of(cls, form: Mapping[str, Any]) -> "TagLayout | None":
        """The layout of a format; None if its calls are JSON."""
        if form["style"] == "json":
            return None
        if form["style"] == "pairs":
            opening = f"{form['key_closing']}\n{form['value_opening']}"
            closing = form["value_closing"]
            return cls("", "", form["key_opening"], form["key_closing"], opening, closing, "", (closing,))
        closings = (form["value_closing"], form["call_closing"])
        opening, closing = form["key_closing"] + form["pad"], form["pad"] + form["value_closing"]
        names = (form["name_opening"], form["name_closing"], form["key_opening"], form["key_closing"])
        return cls(*names, opening, closing, form["call_closing"], closings)


def json_value(strict: Mapping[str, Any]) -> str:
    """A value of a strict schema, with spaces as `tojson` has them."""
    options = {**AS_TOJSON, "json_allowed_escapes": ESCAPES}
    return f"%json {json.dumps({**strict, OPTIONS: options})}"


def parameters(schema: Any, tags: TagLayout, index: int, rules: list[str], *, is_strict: bool) -> str:
    """The parameters of tool `index`, and the end of its call; those of no property are never written. ValueError says
    what cannot be followed. Without `is_strict` a property has any text, or is left out."""
    if is_strict:
        strict_schema(schema)  # refuses what no answer follows in any format
        _check_object(schema)
    known: dict[str, Any] = dict(mapping(schema, "properties"))
    needed = [name for name in schema.get("required", ()) if isinstance(name, str)] if is_strict else []

    parts: list[str] = []
    for number, key in enumerate(dict.fromkeys((*known, *needed))):
        given = known.get(key, schema.get("additionalProperties", True)) if is_strict else {"type": "string"}
        if given is False and key not in needed:
            continue
        if tags.key_closing in key or "\n" in key or not key:
            raise ValueError(f"got the name {key[:80]!r}, which no tag of this model's calls can hold")
        root = schema if is_strict else {"properties": {key: given}}
        value = _value({} if given is True else given, key, root, tags, f"V{index}_{number}", rules)
        rule = f"parameter{index}_{number}"
        rules.append(f'{rule}: {literal(tags.key_opening + key + tags.value_opening)} {value} "\\n"')
        parts.append(rule if key in needed else f"{rule}?")
    return " ".join([*parts, literal(tags.call_closing)])


def objects_only(schema: Any) -> Any:
    """The part of a schema that objects follow. ValueError if none do."""
    if isinstance(schema, dict):
        _check_type(schema)
        return {**schema, "type": "object"}
    return schema


def literal(text: str) -> str:
    """A text as Lark spells it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_type(schema: Mapping[str, Any]) -> None:
    types = schema.get("type", "object")
    if types != "object" and not (isinstance(types, list) and "object" in types):
        raise ValueError(f"type: got {types!r}, expected 'object', because arguments are an object")


def _check_object(schema: Mapping[str, Any]) -> None:
    _check_type(schema)
    for keyword in schema:
        if keyword not in _OF_OBJECTS | _NOTES:
            raise ValueError(f"got {keyword!r} beside `properties`, which this model's calls cannot follow")


def _value(given: Any, key: str, root: Mapping[str, Any], tags: TagLayout, name: str, rules: list[str]) -> str:
    """A value with its closing tag."""
    if not isinstance(given, dict):
        raise ValueError(f"{key[:80]}: no value follows its schema")
    types, end = value_types(root, key), literal(tags.value_closing)
    if "string" not in types:
        return f"{_as_json(given, root)} {end}"

    leaves = list(_leaves(given, root, 0))
    texts = [leaf for leaf in leaves if not (kinds := _kinds(leaf)) or "string" in kinds]
    ways = [_terminal(leaf, key, tags, types) for leaf in texts]
    is_null = types == STRING_OR_NULL
    if is_null and any("null" in _kinds(leaf) for leaf in leaves):
        ways.append(literal("null"))
    if ways:
        rules.append(f"{name}: ({' | '.join(ways)}) {end}")
    if types == STRING or is_null:
        return name
    rest = [other for leaf in leaves if (other := _without_strings(leaf)) is not None]
    return f"({name} | {_as_json({'anyOf': rest}, root)} {end})"


def _leaves(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    """The schemas of which a value follows one."""
    if depth > MAX_DEPTH or not isinstance(schema, dict):
        raise ValueError("got references or unions that this model's calls cannot follow")
    plain = {keyword: value for keyword, value in schema.items() if keyword not in _NOTES}
    match plain:
        case {"$ref": str(reference), **others} if not others:
            yield from _leaves(named(reference, root), root, depth + 1)
        case {"anyOf": list(parts), **others} if not others:
            for part in parts:
                yield from _leaves(part, root, depth + 1)
        case {"allOf": [part], **others} if not others:
            yield from _leaves(part, root, depth + 1)
        case _:
            yield plain


def _kinds(leaf: Mapping[str, Any]) -> frozenset[str]:
    """The types of a schema, as the reader knows them; none if it has none."""
    if not leaf.keys() & {"type", "enum", "const"}:
        return frozenset()
    return value_types({"properties": {"": leaf}}, "")


def _terminal(leaf: Mapping[str, Any], key: str, tags: TagLayout, types: frozenset[str]) -> str:
    """The strings of a schema that hold no closing tag and are read as strings."""
    for keyword in leaf:
        if keyword not in _OF_STRINGS | _OF_OTHERS:
            raise ValueError(f"{key[:80]}: got {keyword!r}, which strings without quotes in this model's calls lack")
    listed = [leaf["const"]] if "const" in leaf else leaf.get("enum")
    if isinstance(listed, list):
        whole = " | ".join(literal(text) for text in listed if isinstance(text, str))
    else:
        least, most = leaf.get("minLength", 0), leaf.get("maxLength", "")
        whole = "/(?s:.*)/" if least == 0 and most == "" else f"/(?s:.{{{least},{most}}})/"

    closings = "|".join(map(_pattern, tags.closings))
    banned = [f"~/(?s:.*)({closings})(?s:.*)/"]
    if types == STRING_OR_NULL:
        banned.append(f"~/{'|'.join(NULLS)}/")
    elif types != STRING:
        banned.append(f"~/{_LIKE_JSON}(?s:.*)/")
    return f"(({whole}) & {' & '.join(banned)})"


def _without_strings(leaf: Mapping[str, Any]) -> dict[str, Any] | None:
    """A schema for the other values; None if there are none."""
    others = _kinds(leaf) - STRING
    if not others:
        return None
    rest = {**leaf, "type": sorted(others)}
    if isinstance(leaf.get("enum"), list):
        rest["enum"] = [value for value in leaf["enum"] if not isinstance(value, str)]
    return rest


def _as_json(given: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """A value as JSON, in a schema of its own."""
    own = ("$schema", *_DEFINITIONS) if "$ref" in json.dumps(given) else ()
    return json_value(strict_schema({**given, **{name: root[name] for name in own if name in root}}))


def _pattern(text: str) -> str:
    """A text within a pattern of Lark."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)
