"""Finds references in a JSON schema that lead back to themselves before any value, as in {"a": {"$ref": "#/$defs/a"}}.

No answer follows such a schema. llguidance accepts it, and notices in the middle of an answer.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

# Keywords of JSON Schema whose values are no schemas, and those that hold schemas by name. The value of any other one,
# also of one that is unknown, may be a schema that a `$ref` names.
VALUES: Final = frozenset("const enum default examples".split())
MAPS: Final = frozenset("properties patternProperties $defs definitions dependentSchemas dependencies".split())
_ANY: Final = ("anyOf", "oneOf")


def check_references(schema: Any) -> None:
    """ValueError for a reference that leads to itself."""
    found = _schemas(schema)
    waiting = {key: needs for key, each in found.items() if (needs := list(_needs(each, schema)))}
    behind: dict[int, list[int]] = {}  # schemas that need another one, by that one
    for key, needs in waiting.items():
        for other in (id(each) for need in needs for each in need):
            behind.setdefault(other, []).append(key)

    left = [key for key in behind if key not in waiting]
    while left:
        for key in behind.get(left.pop(), ()):
            if key in waiting and all(any(id(each) not in waiting for each in need) for need in waiting[key]):
                del waiting[key]
                left.append(key)
    for key in waiting:
        if "$ref" in found[key]:
            raise ValueError(f"the reference {found[key]['$ref'][:80]!r} leads to itself before any value")


def _schemas(root: Any) -> dict[int, dict[str, Any]]:
    """The schemas in a document, and what their references name, by id. Values such as those of `enum` are none."""
    found, left = dict[int, dict[str, Any]](), [root]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict) and id(value) not in found:
            found[id(value)] = value
            for key, each in value.items():
                if key in MAPS and isinstance(each, dict):
                    left += each.values()
                elif key not in VALUES:
                    left.append(each)
            left += [each for need in _needs(value, root) for each in need]
    return found


def _needs(schema: Mapping[str, Any], root: Any) -> Iterator[list[Any]]:
    """What an answer of this schema follows beside its own keywords: of each list at least one."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and (named := _named(reference, root)) is not None:
        yield [named]
    if isinstance(parts := schema.get("allOf"), list):
        yield from ([each] for each in parts if isinstance(each, dict))
    for keyword in _ANY:
        if isinstance(parts := schema.get(keyword), list) and all(isinstance(each, dict) for each in parts) and parts:
            yield parts


def _named(reference: str, root: Any) -> dict[str, Any] | None:
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
