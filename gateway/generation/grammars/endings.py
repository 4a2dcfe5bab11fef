"""Finds schemas in a JSON schema whose values never end, because each needs another such value within it.

    schemas that hold together --ways--> parts --kinds--> what objects and arrays need within: more such schemas

finite      in some way, a value of some kind needs only what is finite: the least fixed point
possible    ... needs only what is possible: the greatest fixed point. What needs `false` is neither

What is possible and not finite never ends. An optional property of that kind is refused, too: an answer could begin it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

from gateway.generation.grammars.references import is_recursive, named
from gateway.generation.grammars.together import Parts, alternatives, first_items, items, mapping, of_name

MAX_LOOKS: Final = 262144  # at ways in which parts hold together, and at what is within these
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
Key = frozenset[int]  # the ids of these


class _Need(NamedTuple):
    """At least `least` of these are needed. One that may be there again and again is listed as often."""

    least: int
    of: Sequence[Together]


class _Within(NamedTuple):
    """The schemas within the objects or the arrays of parts: those that are needed, and all that are allowed."""

    needs: Sequence[_Need]
    all: Sequence[Together]


Needs = Sequence[tuple[int, Sequence[Key]]]  # of a value of one kind: at least so many of these
Found = Mapping[Key, Sequence[Needs]]  # what values need, in each way and of each kind


def check_endings(root: Any, matches: Matches) -> None:
    """ValueError for a reference whose values never end. Before each value, references end in this schema."""
    if not is_recursive(root):
        return
    found, references = _found(root, matches)
    finite = set(_settled(found, is_least=True))
    endless = [key for key in _settled(found, is_least=False) if key not in finite and key in references]
    if endless:
        alone, reference = min((references[key] for key in endless), key=lambda found: not found[0])
        beside = "" if alone else ", with what holds beside it"
        raise ValueError(f"the reference {reference[:80]!r} leads to itself in each value{beside}")


def _found(root: Any, matches: Matches) -> tuple[Found, Mapping[Key, tuple[bool, str]]]:
    """The schemas that hold together somewhere in a document. And of each that has one: a reference, and whether
    nothing stands beside it. ValueError for too much work."""
    found, references, left, num_looks = dict[Key, list[Needs]](), dict[Key, tuple[bool, str]](), [(root,)], 0
    while left:
        together = left.pop()
        key = _key(together)
        if key in found:
            continue
        found[key] = []
        if (instead := _instead(together, root)) is not None:
            found[key] += ([(1, [_key(each)])] for each in instead)
            left += instead
            num_looks += len(instead)
            if "$ref" in together[0]:
                references[key] = (True, together[0]["$ref"])
            continue

        for parts in alternatives(together, root, "$ref"):
            for within in _kinds_of(parts, matches):
                found[key].append([(need.least, [*map(_key, need.of)]) for need in within.needs])
                left += within.all
                num_looks += 1 + len(within.all)
            for part in parts:
                if isinstance(part.get("$ref"), str):
                    references.setdefault(key, (False, part["$ref"]))
            if num_looks > MAX_LOOKS:
                raise ValueError(f"got more than {MAX_LOOKS} schemas in parts that hold together, beside $ref")
    return found, references


def _instead(together: Together, root: Any) -> Sequence[Together] | None:
    """Of which a value follows one, where a reference or a union stands alone. It is then looked at once, however many
    lead to it. None for others."""
    if len(together) != 1 or not isinstance(together[0], dict):
        return None
    match {keyword: value for keyword, value in together[0].items() if keyword not in _SILENT}:
        case {"$ref": str(reference), **others} if not others and (other := named(reference, root)) is not None:
            return [(other,)]
        case {"anyOf": list(parts), **others} | {"oneOf": list(parts), **others} if not others:
            return [_together([each]) for each in parts]
    return None


def _key(together: Together) -> Key:
    return frozenset(map(id, together))


def _settled(found: Found, *, is_least: bool) -> Sequence[Key]:
    """Those that hold if what they need holds, in the order of `found`: the least such set, or the greatest."""
    behind: dict[Key, list[Key]] = {}  # those that need another one, by that one
    for key, kinds in found.items():
        for other in {each for needs in kinds for _, of in needs for each in of}:
            behind.setdefault(other, []).append(key)

    held, due = set() if is_least else set(found), set(found)
    while due:
        changed = [key for key in due if _is_met(found[key], held) != (key in held)]
        held.symmetric_difference_update(changed)
        due = {each for key in changed for each in behind.get(key, ())}
    return [key for key in found if key in held]


def _is_met(kinds: Sequence[Needs], held: Set[Key]) -> bool:
    """Whether a value of some kind needs only what holds."""
    return any(all(sum(each in held for each in of) >= least for least, of in needs) for needs in kinds)


# ---- what is needed within ----


def _kinds_of(parts: Parts, matches: Matches) -> Iterator[_Within]:
    """What is within the values of parts, for each kind that they may be of."""
    values = [found for part in parts if (found := _values(part)) is not None]
    for kind, types in _KINDS.items():
        if not all(_allows(part.get("type"), kind) for part in parts):
            continue
        if not all(any(type(each) in types for each in some) for some in values):
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
        name: _together(each for part in parts for each in of_name(part, name, matches)) for name in required | named
    }
    patterns = {pattern: None for part in parts for pattern in mapping(part, "patternProperties")}
    others = [
        _together(mapping(part, "patternProperties").get(each, part.get("additionalProperties")) for part in parts)
        for each in patterns
    ]
    others.append(_together(part.get("additionalProperties") for part in parts))

    needs = [_Need(1, [of_names[name]]) for name in required]
    if (more := least - len(required)) > 0:
        optional = [each for name, each in of_names.items() if name not in required]
        needs.append(_Need(more, [*optional, *others * more]))
    return _Within(needs, [*of_names.values(), *others])


def _required(part: Mapping[str, Any]) -> Iterator[str]:
    required = part.get("required")
    return (name for name in required if isinstance(name, str)) if isinstance(required, list) else iter(())


def _array(parts: Parts, least: int) -> _Within:
    firsts = [first_items(part) for part in parts]
    places = range(max(map(len, firsts), default=0))
    found = [
        _together(
            first[place] if place < len(first) else items(part) for first, part in zip(firsts, parts, strict=True)
        )
        for place in places
    ]
    found.append(_together(map(items, parts)))
    most = min(_counts(parts, "maxItems"), default=len(found))
    return _Within([_Need(1, [each]) for each in found[:least]], found[:most])


def _together(schemas: Iterable[Any]) -> Together:
    """Those that say something."""
    return tuple(each for each in schemas if isinstance(each, dict) or each is False)
