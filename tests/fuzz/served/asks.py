"""What is asked for, by number: the same seed and number make the same body, whatever else has been asked for.

number --> a family --> a field with a grammar, and the rule by which its answers are judged --> a body
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final

from tests.fuzz.mutations import WORDS
from tests.fuzz.served.hostile import hostile, hostile_tools
from tests.fuzz.served.patterns import is_common, pattern
from tests.fuzz.served.rules import Rules, as_gbnf, as_lark, rules
from tests.fuzz.served.schemas import schema
from tests.fuzz.served.trees import changed
from tests.schema_suite import DRAFTS, FOLDER, groups

MAX_BODY: Final = 64 * 1024
TEXTS: Final = (
    "a",
    "ab",
    "yes",
    "no",
    "",
    " ",
    "a b",
    '"',
    "\\",
    "\n",
    "é",
    "的",
    "\x7f",
    "<|im_end|>",
    "x" * 300,
    "{",
)
CALM_FIELDS: Final = "messages max_tokens temperature seed n stream ignore_eos".split()


@dataclass(frozen=True)
class Rule:
    """How an answer is judged. `kind`: json, regex, choice, ebnf, tags, tools; or none: only how it ends is judged."""

    kind: str = "none"
    value: Any = None


@dataclass(frozen=True)
class Ask:
    """A request. `family`: how it was made; `grammar`: the field of its grammar, "" if the body may be no JSON. With
    `tools` it has a `tool_choice`, too."""

    number: int
    family: str
    grammar: str
    raw: bytes
    rule: Rule = field(default_factory=Rule)

    def calm(self) -> bytes:
        """The same body without its grammar."""
        rng = Random(self.number)
        return json.dumps(_sampling(rng)).encode()


Made = tuple[dict[str, Any], Rule]


def ask(seed: int, number: int, mark: str = "") -> Ask:
    """The request of this number. `mark` makes another grammar of it that allows the same answers, if it can."""
    rng = Random(f"grammars {seed} {number}")
    name = rng.choices(list(_FAMILIES), [share for share, _ in _FAMILIES.values()])[0]
    made, rule = _FAMILIES[name][1](rng)
    fields = _marked(made, mark) if mark else made
    grammar, *_ = fields
    body = {**_sampling(Random(number)), **fields}
    raw = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode()
    if name != "bytes" and len(raw) <= MAX_BODY:
        return Ask(number, name, grammar, raw, rule)
    return Ask(number, name, "", _with_flips(rng, raw)[:MAX_BODY])


def _sampling(rng: Random) -> dict[str, Any]:
    """The body beside its grammar."""
    words = rng.choice(("Tell me a story.", "Describe a fox.", "Answer in JSON.", "the fox went on " * 20))
    found: dict[str, Any] = {"messages": [{"role": "user", "content": words}]}
    found["max_tokens"] = rng.choice((1, 2, 7, 30, 60, 100, 100, 200))
    found["temperature"] = rng.choice((0, 0.3, 1, 1, 1.5, 2))
    found["seed"] = rng.randrange(2**31)
    found["n"] = rng.choice((1, 1, 1, 2, 4))
    if rng.random() < 0.25:
        found["stream"] = True
    if rng.random() < 0.1:
        found["ignore_eos"] = True
    return found


# ---- families ----


def _of_json(rng: Random, value: Any) -> Made:
    """A schema in one of the fields that take one."""
    rule = Rule("json", value)
    own = value if rng.random() < 0.8 else json.dumps(value)
    named = {"name": "x", "schema": value}
    options: list[dict[str, Any]] = [{"guided_json": own}, {"json_schema": own}, {"structured_outputs": {"json": own}}]
    options.append({"structured_outputs": {"json": own, "disable_any_whitespace": True}})
    if isinstance(value, dict | bool):
        options.append({"response_format": {"type": "json_schema", "json_schema": named}})
    return rng.choice(options), rule


def _random_schema(rng: Random) -> Made:
    return _of_json(rng, schema(rng))


def _suite_schema(rng: Random) -> Made:
    return _of_json(rng, rng.choice(suite()))


def _changed_schema(rng: Random) -> Made:
    begin = rng.choice(suite()) if rng.random() < 0.5 else schema(rng)
    return _of_json(rng, changed(rng, begin, [rng.choice(suite()), schema(rng)]))


def _of_pattern(rng: Random, text: str) -> Made:
    name = rng.choice(("guided_regex", "regex", "structured_outputs"))
    rule = Rule("regex", text) if text and is_common(text) else Rule()
    return {name: {"regex": text} if name == "structured_outputs" else text}, rule


def _random_pattern(rng: Random) -> Made:
    return _of_pattern(rng, pattern(rng, odd=rng.choice((0, 0, 0.05, 0.3))))


def _changed_pattern(rng: Random) -> Made:
    return _of_pattern(rng, _with_pieces(rng, pattern(rng)))


def _choice(rng: Random) -> Made:
    number = rng.choice((1, 2, 5, 100))
    texts = [
        rng.choice(TEXTS) * rng.choice((1, 1, 2, 20)) + rng.choice(("", str(rng.randrange(9)))) for _ in [0] * number
    ]
    name = rng.choice(("guided_choice", "structured_outputs"))
    return {name: {"choice": texts} if name == "structured_outputs" else texts}, Rule("choice", texts)


def _of_rules(rng: Random, text: str, rule: Rule) -> Made:
    name = rng.choice(("guided_grammar", "ebnf", "structured_outputs"))
    return {name: {"grammar": text} if name == "structured_outputs" else text}, rule


def _random_rules(rng: Random) -> Made:
    found: Rules = rules(rng)
    return _of_rules(rng, rng.choice((as_lark, as_gbnf))(found), Rule("ebnf", found))


def _changed_rules(rng: Random) -> Made:
    return _of_rules(rng, _with_pieces(rng, rng.choice((as_lark, as_gbnf))(rules(rng))), Rule())


def _tags(rng: Random) -> Made:
    names = rng.sample(("f", "g", "call", "x y", "é"), rng.randint(1, 2))
    structures = [{"begin": f"<{name}>", "schema": schema(rng), "end": f"</{name}>"} for name in names]
    triggers = [rng.choice(("<", f"<{name}", f"<{name}>")) for name in names]
    tag: Any = {"type": "structural_tag", "structures": structures, "triggers": triggers}
    rule = Rule("tags", structures)
    if rng.random() < 0.2:
        tag, rule = changed(rng, tag, [schema(rng)]), Rule()
    if isinstance(tag, dict) and tag.get("type") == "structural_tag" and rng.random() < 0.5:
        return {"response_format": tag}, rule
    return {"structural_tag": tag}, rule


def _tools(rng: Random) -> Made:
    """Tools of which one must be called, any or the last one."""
    if rng.random() < 0.1:
        sets = [fields for fields in hostile_tools(rng.randrange(10**6)).values() if len(str(fields)) < MAX_BODY]
        hostile_set = dict(rng.choice(sets))
        return hostile_set, Rule("tools", hostile_set["tools"])

    tools: list[dict[str, Any]] = []
    for name in rng.sample(("f", "g", "look_up", "a.b-c"), rng.randint(1, 3)):
        drawn = schema(rng)
        parameters = drawn if isinstance(drawn, dict) and rng.random() < 0.5 else _object_of(rng, drawn)
        tools.append({"type": "function", "function": {"name": name, "parameters": parameters}})
    named = {"type": "function", "function": {"name": tools[-1]["function"]["name"]}}
    return {"tools": tools, "tool_choice": rng.choice(("required", named))}, Rule("tools", tools)


def _object_of(rng: Random, value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": {"a": value, "b": {"type": "boolean"}}}
    return {**found, "required": rng.sample(("a", "b"), 1), "additionalProperties": False}


def _hostile(rng: Random) -> Made:
    """Those that fit into a body."""
    fields = rng.choice([each for each in hostile(rng.randrange(10**6)).values() if len(str(each)) < MAX_BODY])
    (name,) = (each for each in fields if each not in CALM_FIELDS)
    return {name: fields[name]}, Rule()


def _long(rng: Random) -> Made:
    """One part, repeated until the body is as long as it may be."""
    size = rng.choice((3000, 20_000, 60_000))
    text = pattern(rng, 1)
    texts = [f"{place} {text}"[:200] for place in range(size // 40)]
    options: list[Callable[[], Made]] = [
        lambda: _of_pattern(rng, (text + "|") * (size // (len(text) + 1)) + "end"),
        lambda: ({"guided_choice": texts}, Rule("choice", texts)),
        lambda: _of_json(rng, {"enum": texts}),
        lambda: _of_json(rng, {"const": text * (size // (1 + len(text)))}),
        lambda: _of_json(rng, {"type": "object", "properties": {each: {} for each in texts[: size // 100]}}),
        lambda: _of_json(rng, {"type": "string", "minLength": size, "maxLength": size}),
        lambda: _of_json(rng, {"anyOf": [schema(rng) for _ in range(size // 2000)]}),
    ]
    return rng.choice(options)()


def _bytes(rng: Random) -> Made:
    return rng.choice((_random_schema, _random_rules, _random_pattern, _tags))(rng)


_FAMILIES: Final[dict[str, tuple[float, Callable[[Random], Made]]]] = {  # with how often it is drawn
    "random schema": (30, _random_schema),
    "schema of the suite": (8, _suite_schema),
    "changed schema": (20, _changed_schema),
    "random pattern": (9, _random_pattern),
    "changed pattern": (4, _changed_pattern),
    "choice": (4, _choice),
    "random rules": (10, _random_rules),
    "changed rules": (5, _changed_rules),
    "tags": (4, _tags),
    "tools": (12, _tools),
    "hostile": (1.5, _hostile),
    "long": (2, _long),
    "bytes": (2.5, _bytes),
}


@cache
def suite() -> Sequence[Any]:
    """The schemas of the public suite, of every draft; a few of our own where it is not downloaded."""
    if not (FOLDER / "tests").is_dir():
        return [schema(Random(place)) for place in range(20)]
    return [group.schema for draft in DRAFTS for group in groups(draft)]


# ---- changes ----


def _with_pieces(rng: Random, text: str) -> str:
    """A text with pieces deleted, moved and repeated."""
    for _ in range(rng.randint(1, 4)):
        begin, end = sorted(rng.randint(0, len(text)) for _ in range(2))
        piece = text[begin:end]
        word = rng.choice(WORDS).decode(errors="replace")
        times = rng.choice((2, 10, 500))
        text = rng.choice(
            (
                text[:begin] + text[end:],
                text[:begin] + piece * min(times, 1 + 20_000 // (1 + len(piece))) + text[end:],
                text[:begin] + word + text[end:],
                text[end:] + piece + text[:begin],
                text[:begin] + word * min(times, 1000 // len(word)) + text[begin:],
            )
        )
    return text[: MAX_BODY // 4]


def _with_flips(rng: Random, raw: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(raw))
        raw = raw[:place] + rng.choice((bytes([rng.randrange(256)]), rng.choice(WORDS))) + raw[place + 1 :]
    return raw


def _marked(fields: dict[str, Any], mark: str) -> dict[str, Any]:
    """The same field with another grammar for the same answers; the same one where there is no room for a mark."""
    if "tools" in fields:
        *others, last = fields["tools"]
        parameters = {**last["function"]["parameters"], "title": mark}
        return {**fields, "tools": [*others, {**last, "function": {**last["function"], "parameters": parameters}}]}
    ((name, value),) = fields.items()
    if name in ("guided_json", "json_schema") and isinstance(value, dict):
        return {name: {**value, "title": mark}}
    if name in ("guided_grammar", "ebnf") and isinstance(value, str):
        return {name: f'{value}\nunused: "{mark}"' if "::=" not in value else f'{value}\nunused ::= "{mark}"'}
    if name == "structured_outputs" and isinstance(value.get("json"), dict):
        return {name: {**value, "json": {**value["json"], "title": mark}}}
    return fields
