"""Requests that are made to cost much, most of them by a grammar of up to a megabyte and beyond: fields by name."""

from collections.abc import Mapping
from typing import Any, Final

Fields = Mapping[str, Any]
MEGABYTE: Final = 1024 * 1024


def hostile(turn: int) -> dict[str, Fields]:
    """By name. Each turn has others, so that no worker knows them."""
    mark, schemas = f"turn {turn}", _schemas(turn)
    found: dict[str, Fields] = {name: {"guided_json": {**each, "title": mark}} for name, each in schemas.items()}
    found |= {name: {"regex": f"{each}{turn}"} for name, each in _PATTERNS.items()}
    found["choice of 4,096 texts"] = {"guided_choice": [f"{mark} text {number} of many" for number in range(4096)]}
    rules = "\n".join(f'r{place} ::= "x{turn}" r{(place * 7 + 1) % 2000} | "y"' for place in range(2000))
    starts = " | ".join(f'"{place}" r{place}' for place in range(2000))
    found["EBNF of 2,000 rules"] = {"ebnf": f"root ::= {starts}\n{rules}"}
    chain = "\n".join(f'r{place} ::= "x{turn}" r{place + 1}' for place in range(5000))
    found["EBNF in a chain of 5,000"] = {"ebnf": f'root ::= r0\n{chain}\nr5000 ::= "y"'}
    chain = "\n".join(f'r{place}: "x{turn}" r{place + 1}' for place in range(3900))
    found["EBNF in a chain of 3,900"] = {"guided_grammar": f'start: r0\n{chain}\nr3900: "y"'}
    found |= _slow_ones(turn)
    found["EBNF of 200,000 line breaks"] = {"ebnf": f"{turn}" + "\n" * 200_000}
    found["EBNF of 3,000 brackets"] = {"ebnf": "root ::= " + "(" * 3000 + f'"{turn}"' + ")" * 3000}
    return found


def hostile_tools(turn: int) -> dict[str, Fields]:
    """Tools of which one must be called, by name: their schemas cost much, or there are too many of them."""
    schemas: dict[str, Any] = {name: _within(each) for name, each in _schemas(turn).items()}
    schemas |= {name: _within({"type": "string", "pattern": f"{each}{turn}"}) for name, each in _PATTERNS.items()}
    schemas["a tree of references"] = _tree_of_references(turn)
    schemas["references around a loop"] = {
        "$defs": {f"d{place}": {"$ref": f"#/$defs/d{(place + 1) % 500}"} for place in range(500)},
        **_within({"$ref": "#/$defs/d0"}),
        "title": f"turn {turn}",
    }
    found: dict[str, Fields] = {name: _forced([_tool(f"f{turn}", each)]) for name, each in schemas.items()}
    small = _object(1, turn, {"enum": [turn, None]})
    for number in (2000, 1024, 200):
        found[f"{number:,} tools"] = _forced([_tool(f"f{turn}_{place}", small) for place in range(number)])
    long = [_tool("f" * 120 + f"{place}", small) for place in range(500)]
    found["500 tools whose names begin alike"] = _forced(long, named=long[turn % 500]["function"]["name"])
    of_enum = {"enum": [f"turn {turn} value {place}" for place in range(60)]}
    found["100 tools of long enums"] = _forced([_tool(f"f{place}", _object(9, place, of_enum)) for place in range(100)])
    return found


def _within(schema: Any) -> dict[str, Any]:
    """An object with such a value."""
    return {"type": "object", "properties": {"value": schema}, "required": ["value"]}


def _tree_of_references(turn: int) -> dict[str, Any]:
    """Each name twice in the one before: 2^40 objects, if they were written out."""
    names = {f"d{place}": _object(2, turn, {"$ref": f"#/$defs/d{place + 1}"}) for place in range(40)}
    return {"$defs": {**names, "d40": {"const": turn}}, **_within({"$ref": "#/$defs/d0"})}


def _tool(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}


def _forced(tools: list[dict[str, Any]], named: str = "") -> Fields:
    choice: Any = {"type": "function", "function": {"name": named}} if named else "required"
    return {"tools": tools, "tool_choice": choice}


def _slow_ones(turn: int) -> dict[str, Fields]:
    """Grammars of a few characters, or of one long text: each mask and each read takes much."""
    long_ones = {"max_tokens": 400, "ignore_eos": True, "n": 8, "seed": turn}
    text = f"{turn}" + "ab" * 100_000
    ambiguous = {
        "ambiguous rules": 'start: e\ne: e e e | e e | "a"',
        "ambiguous lists": 'start: l\nl: x* | l l\nx: ("a" | "aa" | "aaa")+',
        "an ambiguous end": 'start: p\np: p p | "(" p ")" | "a" | ""',
    }
    found: dict[str, Fields] = {
        f"{name}, n = 8": {**long_ones, "guided_grammar": f'{each}\nunused: "{turn}"'}
        for name, each in ambiguous.items()
    }
    found["choice of one text of 200,000"] = {"guided_choice": [text], "max_tokens": 64, "n": 4}
    found["const of 200,000 characters"] = {"guided_json": {"const": text}, "max_tokens": 64, "n": 4}
    found["number without an end"] = {"guided_grammar": f'start: "{turn}" %json {{"const": -9223372036854775807}}'}
    return found


def _schemas(turn: int) -> dict[str, dict[str, Any]]:
    of_text = {"type": "string", "pattern": "^[a-z]{2,50}$"}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    return {
        "schema of a megabyte": _object(16_000, turn, of_text),
        "schema of 7 megabytes": {"type": "object", "description": "x" * 7 * MEGABYTE},
        "schema of 3,000 properties": _object(3000, turn, of_text),
        "schema of 90 properties, 30 times": {"allOf": [_object(90, turn, of_text) for _ in range(30)]},
        "one of 2,000 objects": {"anyOf": [_object(1, place, {"const": place}) for place in range(2000)]},
        "enum of 15,000 texts": {"enum": [f"v{place}" for place in range(15_000)]},
        "patterns that overlap": {
            "type": "object",
            "properties": {
                f"k{place}": {"type": "string", "pattern": f"^(.*{place % 10}.{{{10 + place % 7}}})+$"}
                for place in range(500)
            },
            "required": [f"k{place}" for place in range(500)],
        },
        "array of 100,000 texts": {"type": "array", "items": {"type": "string"}, "minItems": 100_000},
        "objects 400 deep": deep,
        "schema without an end": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    }


def _object(num: int, first: int, value: dict[str, Any]) -> dict[str, Any]:
    names = [f"field{first + place}" for place in range(num)]
    return {"type": "object", "properties": dict.fromkeys(names, value), "required": names}


_PATTERNS: Final = {
    "pattern of a megabyte": "(ab?)" * (MEGABYTE // 5),
    "pattern of 260,000 characters": "(ab?)" * 52_000,
    "pattern with a distant choice": "(a|b)*a(a|b){20}",
    "pattern of repeats of repeats": "((a{1,100}){1,100}){1,100}",
    "pattern of many letters": r"\w{1000}" * 5,
    "pattern of far looks": "(.*a.{12})(.*b.{12})(.*c.{12}).*",
    "pattern of 5,000 brackets": "(" * 5000 + "a" + ")" * 5000,
}
