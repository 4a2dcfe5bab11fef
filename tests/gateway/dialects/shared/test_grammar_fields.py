import asyncio
import json
from typing import Any

import pytest

from gateway.dialects.openai.fields import ChatRequest, parse
from gateway.dialects.openai.read import ask_of_chat
from gateway.generation.grammars.checks import GrammarChecks
from gateway.words.places import named
from protocol.errors import BadRequest
from protocol.grammar import MAX_GRAMMAR_CHARS
from tests.byte_grammars import checks

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<"]}
GOOD: list[dict[str, Any]] = [  # beside those of kept answers, as in BAD
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    {"guided_json": json.dumps(SCHEMA)},
    {"guided_json": True},
    {"guided_json": {}},
    {"guided_choice": ['say "no"', "back\\slash", "line\nbreak", "déjà", "🦊", "\x00\x7f"]},
    {"guided_grammar": 'start: "a" /[0-9]+/'},
    {"json_schema": json.dumps(SCHEMA)},
    {"regex": "(yes|no)"},
    {"ebnf": 'root ::= [a-z]+ "!"'},
    {"structural_tag": json.dumps(TAG)},
    {"structural_tag": {"type": "structural_tag", **TAG}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"grammar": 'root ::= "a"'}},
    {"structured_outputs": {"json_object": True}},
    {"structured_outputs": {"structural_tag": TAG}},
]
NONE: list[dict[str, Any]] = [
    {},
    {"response_format": {"type": "text"}},
    {"response_format": None, "guided_json": None},
    {"structured_outputs": {}},
    {"structured_outputs": {"json_object": False}},
    {"regex": "", "ebnf": "", "guided_choice": []},
]
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"regex": "(?=a)b"}, "regex", "look-around"),
    ({"guided_json": "{"}, "guided_json", "cannot be followed"),
    ({"guided_json": {"not": {"type": "string"}}}, "guided_json", "not"),
    ({"guided_json": False}, "guided_json", "cannot be followed"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "cannot be followed"),  # it has no end
    ({"json_schema": json.dumps({"$ref": "#/nowhere"})}, "json_schema", "nowhere"),
    ({"ebnf": "foo"}, "ebnf", "::="),
    ({"ebnf": "root ::= other"}, "ebnf", "other"),
    ({"ebnf": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000}, "ebnf", "cannot be followed"),
    ({"structural_tag": {**TAG, "triggers": ["x"]}}, "structural_tag", "triggers"),
    ({"structural_tag": {**TAG, "structures": [5]}}, "structural_tag", "structures[0]"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "structured_outputs.regex"),
    ({"regex": "a", "guided_json": {}}, "regex", "beside guided_json"),
    ({"regex": "a", "guided_regex": "b"}, "regex", "beside guided_regex"),
    ({"ebnf": '{"grammars": 5}'}, "ebnf", "cannot be followed"),
    ({"regex": "[^\\s\\S]"}, "regex", "nothing may follow"),
    ({"guided_json": {"a": {"b": ["x"] * MAX_GRAMMAR_CHARS}}}, "guided_json", f"more than {MAX_GRAMMAR_CHARS}"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "without json_schema"),
    ({"guided_choice": ["a" * 200_000, "b" * 200_000]}, "guided_choice", f"more than {MAX_GRAMMAR_CHARS}"),
]


def request(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, {"messages": [{"role": "user", "content": "hi"}], **fields})


def text(made: GrammarChecks, fields: dict[str, Any]) -> str:
    ask = ask_of_chat(request(**fields))
    with named(ask.origins):
        return asyncio.run(made.text_of(ask.shape))


@pytest.mark.parametrize("fields", GOOD)
def test_a_grammar_gets_a_text(fields: dict[str, Any]) -> None:
    found = text(checks(), fields)
    assert found and found == text(checks(), fields)


def test_fields_of_the_same_meaning_give_the_same_text() -> None:
    made = checks()
    groups: list[list[dict[str, Any]]] = [
        [{"guided_json": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA}}],
        [{"regex": "a+"}, {"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}],
        [{"ebnf": 'root ::= "a"'}, {"guided_grammar": 'root ::= "a"'}],
        [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}],
    ]
    for same in groups:
        assert len({text(made, fields) for fields in same}) == 1


@pytest.mark.parametrize("fields", NONE)
def test_nothing_is_asked_for(fields: dict[str, Any]) -> None:
    assert ask_of_chat(request(**fields)).shape is None and text(checks(), fields) == ""


@pytest.mark.parametrize(("fields", "param", "told"), BAD)
def test_what_cannot_be_followed_is_refused_by_name(fields: dict[str, Any], param: str, told: str) -> None:
    made = checks()
    for _ in range(2):  # the second one is remembered
        with pytest.raises(BadRequest) as caught:
            text(made, fields)
        assert caught.value.param == param and caught.value.message.startswith(param)
        assert told in caught.value.message and "\n" not in caught.value.message
        assert len(caught.value.message) < 450


def test_the_same_grammar_in_two_fields_is_one() -> None:
    made, grammar = checks(), 'start: "a" | "b"'
    both = {"guided_grammar": grammar, "structured_outputs": {"grammar": grammar}}
    assert text(made, both) == text(made, {"ebnf": grammar})


def test_a_schema_in_llguidances_own_form_is_the_grammar_of_the_schema_alone() -> None:
    own = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
    alone, embedded = (text(checks(), fields) for fields in ({"guided_json": SCHEMA}, {"ebnf": own}))
    assert json.loads(embedded) == json.loads(alone)
