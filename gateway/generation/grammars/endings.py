"""Finds schemas in a JSON schema whose values never end, because each value needs another such value within it.

    schemas that hold together --ways--> parts --kinds--> what objects and arrays need within: more such schemas

finite      a value exists that ends: it needs only finite schemas within it (the least fixed point)
possible    a value exists, and may be endless: it needs only possible schemas (the greatest fixed point)

A schema that is possible and not finite never ends, and a reference to it is refused. That holds for an optional
property, too, because an answer could begin it. A schema that needs `false` is neither.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

from gateway.generation.grammars.references import is_recursive, named
from gateway.generation.grammars.together import Parts, alternatives, first_items, items, mapping, of_name

MAX_LOOKS: Final = 262144  # most ways, and schemas within them, that are looked at
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "number": (int, float),
    "string": (str,),
    "object": (dict,),
    "array": (list,),
}
_SILENT: Final = frozenset("$defs definitions $schema $id id $comment title description".split())
Matches = Callable[[str, str], bool]  # whether a pattern matches a name
Together = tuple[Any, ...]  # schemas that hold together for one value
Key = frozenset[int]  # names a Together: the ids of its schemas


class _Need(NamedTuple):
    """A value needs at least `least` of the schemas `of` within it. One that may be used n times is listed n times."""

    least: int
    of: Sequence[Together]


class _Within(NamedTuple):
    """The schemas within an object or an array: what its values need, and all schemas that may occur."""

    needs: Sequence[_Need]
    all: Sequence[Together]


Needs = Sequence[tuple[int, Sequence[Key]]]  # what a value of one kind needs: at least so many of these schemas
Found = Mapping[Key, Sequence[Needs]]  # by schema: its needs, one entry for each way and kind


def check_endings(root: Any, matches: Matches) -> None:
    """ValueError for a reference whose values never end. No reference in `root` leads to itself without a value between
    (grammar_references.py has refused those)."""
    if not is_recursive(root):
        return
    needs_of, references = _found(root, matches)
    finite = set(_settled(needs_of, is_least=True))
    endless = [key for key in _settled(needs_of, is_least=False) if key not in finite and key in references]
    if endless:
        alone, reference = min((references[key] for key in endless), key=lambda entry: not entry[0])
        beside = "" if alone else ", with what holds beside it"
        raise ValueError(f"the reference {reference[:80]!r} leads to itself in each value{beside}")


def _found(root: Any, matches: Matches) -> tuple[Found, Mapping[Key, tuple[bool, str]]]:
    """The needs of all schemas that hold together somewhere in `root`. And for those with a reference: whether it
    stands alone, and its text. ValueError for too much work."""
    needs_of, references, left, num_looks = dict[Key, list[Needs]](), dict[Key, tuple[bool, str]](), [(root,)], 0
    while left:
        together = left.pop()
        key = _key(together)
        if key in needs_of:
            continue
        needs_of[key] = []
        if (instead := _instead(together, root)) is not None:
            needs_of[key] += ([(1, [_key(other)])] for other in instead)
            left += instead
            num_looks += len(instead)
            if "$ref" in together[0]:
                references[key] = (True, together[0]["$ref"])
            continue

        for parts in alternatives(together, root, "$ref"):
            for within in _kinds_of(parts, matches):
                needs_of[key].append([(need.least, [*map(_key, need.of)]) for need in within.needs])
                left += within.all
                num_looks += 1 + len(within.all)
            for part in parts:
                if isinstance(part.get("$ref"), str):
                    references.setdefault(key, (False, part["$ref"]))
            if num_looks > MAX_LOOKS:
                raise ValueError(f"got more than {MAX_LOOKS} schemas in parts that hold together, beside $ref")
    return needs_of, references


def _instead(together: Together, root: Any) -> Sequence[Together] | None:
    """The schemas of which a value follows one, where a reference or a union stands alone; else None. Each is then
    looked at once, however many references lead to it."""
    if len(together) != 1 or not isinstance(together[0], dict):
        return None
    match {keyword: value for keyword, value in together[0].items() if keyword not in _SILENT}:
        case {"$ref": str(reference), **others} if not others and (other := named(reference, root)) is not None:
            return [(other,)]
        case {"anyOf": list(parts), **others} | {"oneOf": list(parts), **others} if not others:
            return [_together([part]) for part in parts]
    return None


def _key(together: Together) -> Key:
    return frozenset(map(id, together))


def _settled(needs_of: Found, *, is_least: bool) -> Sequence[Key]:
    """The schemas of the least fixed point, or of the greatest: each needs only schemas of that set."""
    behind: dict[Key, list[Key]] = {}  # by schema: the schemas that need it
    for key, kinds in needs_of.items():
        for other in {needed for needs in kinds for _, of in needs for needed in of}:
            behind.setdefault(other, []).append(key)

    held, due = set() if is_least else set(needs_of), set(needs_of)
    while due:
        changed = [key for key in due if _is_met(needs_of[key], held) != (key in held)]
        held.symmetric_difference_update(changed)
        due = {needing for key in changed for needing in behind.get(key, ())}
    return [key for key in needs_of if key in held]


def _is_met(kinds: Sequence[Needs], held: Set[Key]) -> bool:
    """Whether the needs of some kind of value are met by the schemas in `held`."""
    return any(all(sum(needed in held for needed in of) >= least for least, of in needs) for needs in kinds)


# ---- what is needed within ----


def _kinds_of(parts: Parts, matches: Matches) -> Iterator[_Within]:
    """For each kind of value that all parts allow: what such a value has within it."""
    values = [listed for part in parts if (listed := _values(part)) is not None]
    for kind, types in _KINDS.items():
        if not all(_allows(part.get("type"), kind) for part in parts):
            continue
        if not all(any(type(value) in types for value in some) for some in values):
            continue
        if values or kind not in ("object", "array"):
            yield _Within((), ())
        elif (least := _least(parts, kind)) is not None:
            yield _object(parts, least, matches) if kind == "object" else _array(parts, least)


def _values(part: Mapping[str, Any]) -> Sequence[Any] | None:
    """The values that a part lists; None if it lists none."""
    if "const" in part:
        return [part["const"]]
    return part["enum"] if isinstance(part.get("enum"), list) else None


def _allows(types: Any, kind: str) -> bool:
    own = types if isinstance(types, list) else [kind if types is None else types]
    return kind in own or (kind == "number" and "integer" in own)


def _least(parts: Parts, kind: str) -> int | None:
    """How many properties or items a value has at least; None if it may not have as many."""
    what = "Properties" if kind == "object" else "Items"
    least = max(_counts(parts, f"min{what}"), default=0)
    return least if least <= min(_counts(parts, f"max{what}"), default=least) else None


def _counts(parts: Parts, keyword: str) -> Iterator[int]:
    return (part[keyword] for part in parts if isinstance(part.get(keyword), int))


def _object(parts: Parts, least: int, matches: Matches) -> _Within:
    required = {name: None for part in parts for name in _required(part)}
    named = {name: None for part in parts for name in mapping(part, "properties")}
    of_names = {
        name: _together(schema for part in parts for schema in of_name(part, name, matches))
        for name in required | named
    }
    patterns = {pattern: None for part in parts for pattern in mapping(part, "patternProperties")}
    others = [
        _together(mapping(part, "patternProperties").get(pattern, part.get("additionalProperties")) for part in parts)
        for pattern in patterns
    ]
    others.append(_together(part.get("additionalProperties") for part in parts))

    needs = [_Need(1, [of_names[name]]) for name in required]
    if (more := least - len(required)) > 0:
        optional = [schema for name, schema in of_names.items() if name not in required]
        needs.append(_Need(more, [*optional, *others * more]))
    return _Within(needs, [*of_names.values(), *others])


def _required(part: Mapping[str, Any]) -> Iterator[str]:
    required = part.get("required")
    return (name for name in required if isinstance(name, str)) if isinstance(required, list) else iter(())


def _array(parts: Parts, least: int) -> _Within:
    firsts = [first_items(part) for part in parts]
    places = range(max(map(len, firsts), default=0))
    within = [
        _together(
            first[index] if index < len(first) else items(part) for first, part in zip(firsts, parts, strict=True)
        )
        for index in places
    ]
    within.append(_together(map(items, parts)))
    most = min(_counts(parts, "maxItems"), default=len(within))
    return _Within([_Need(1, [item]) for item in within[:least]], within[:most])


def _together(schemas: Iterable[Any]) -> Together:
    """The schemas that restrict a value: objects and `false`."""
    return tuple(schema for schema in schemas if isinstance(schema, dict) or schema is False)
