import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llguidance import LLMatcher

from gateway import grammars
from gateway.grammar_fields import MAX_CHOICES
from gateway.grammars import MAX_REMEMBERED, MAX_REMEMBERED_CHARS, Asked, GrammarChecks, asked
from gateway.schemas import ChatRequest, parse
from protocol.errors import BadRequest, Overloaded
from protocol.grammar import MAX_GRAMMAR_CHARS
from runtime.grammar_limits import limits

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<"]}
LARGE = {
    "type": "object",
    "properties": {f"k{place}": {"type": "string", "pattern": "^[a-z]{2,50}$"} for place in range(1000)},
}
GOOD: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    {"response_format": {"type": "structural_tag", **TAG}},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA)},
    {"guided_json": True},
    {"guided_json": {}},
    {"guided_regex": "[0-9]{3}"},
    {"guided_choice": ['say "no"', "back\\slash", "line\nbreak", "déjà", "🦊"]},
    {"guided_grammar": 'root ::= "a" | root "b"'},
    {"guided_grammar": 'start: "a" /[0-9]+/'},
    {"json_schema": json.dumps(SCHEMA)},
    {"regex": "(yes|no)"},
    {"ebnf": 'root ::= [a-z]+ "!"'},
    {"structural_tag": json.dumps(TAG)},
    {"structural_tag": {"type": "structural_tag", **TAG}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
    {"structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
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
    ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
    ({"regex": "(?=a)b"}, "regex", "look-around"),
    ({"guided_json": "{"}, "guided_json", "cannot be followed"),
    ({"guided_json": "[1]"}, "guided_json", "expected a JSON schema"),
    ({"guided_json": {"type": "strng"}}, "guided_json", "strng"),
    ({"guided_json": {"not": {"type": "string"}}}, "guided_json", "not"),
    ({"guided_json": False}, "guided_json", "cannot be followed"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "cannot be followed"),  # it has no end
    ({"json_schema": json.dumps({"$ref": "#/nowhere"})}, "json_schema", "nowhere"),
    ({"ebnf": "foo"}, "ebnf", "::="),
    ({"ebnf": "root ::= other"}, "ebnf", "other"),
    ({"ebnf": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000}, "ebnf", "cannot be followed"),
    ({"guided_grammar": "start: other"}, "guided_grammar", "other"),
    ({"structural_tag": "{}"}, "structural_tag", "structures"),
    ({"structural_tag": {**TAG, "triggers": ["x"]}}, "structural_tag", "triggers"),
    ({"structural_tag": {**TAG, "structures": [5]}}, "structural_tag", "structures[0]"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "beside structured_outputs.regex"),
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


def text(checks: GrammarChecks, fields: dict[str, Any]) -> str:
    return asyncio.run(checks.text_of(request(**fields)))


@pytest.mark.parametrize("fields", GOOD)
def test_a_grammar_gets_a_text(fields: dict[str, Any]) -> None:
    found = text(GrammarChecks(), fields)
    assert found and found == text(GrammarChecks(), fields)


def test_fields_of_the_same_meaning_give_the_same_text() -> None:
    checks = GrammarChecks()
    groups: list[list[dict[str, Any]]] = [
        [{"guided_json": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA}}],
        [{"regex": "a+"}, {"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}],
        [{"ebnf": 'root ::= "a"'}, {"guided_grammar": 'root ::= "a"'}],
        [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}],
    ]
    for same in groups:
        assert len({text(checks, fields) for fields in same}) == 1


@pytest.mark.parametrize("fields", NONE)
def test_nothing_is_asked_for(fields: dict[str, Any]) -> None:
    assert asked(request(**fields)) is None and text(GrammarChecks(), fields) == ""


@pytest.mark.parametrize(("fields", "param", "told"), BAD)
def test_what_cannot_be_followed_is_refused_by_name(fields: dict[str, Any], param: str, told: str) -> None:
    checks = GrammarChecks()
    for _ in range(2):  # the second one is remembered
        with pytest.raises(BadRequest) as caught:
            text(checks, fields)
        assert caught.value.param == param and caught.value.message.startswith(param)
        assert told in caught.value.message and "\n" not in caught.value.message
        assert len(caught.value.message) < 450


def test_the_same_grammar_in_two_fields_is_one() -> None:
    checks, grammar = GrammarChecks(), 'start: "a" | "b"'
    both = {"guided_grammar": grammar, "structured_outputs": {"grammar": grammar}}
    assert text(checks, both) == text(checks, {"ebnf": grammar})


def test_llguidances_own_form_is_taken_as_it_is() -> None:
    own = text(GrammarChecks(), {"guided_json": SCHEMA})
    assert text(GrammarChecks(), {"ebnf": own}) == own


def test_others_go_on_while_a_grammar_is_compiled() -> None:
    checks, is_held, is_free = GrammarChecks(), threading.Event(), threading.Event()
    find = checks.check

    def held(wanted: Asked) -> str | BadRequest:
        is_held.set()
        assert threading.current_thread() is not threading.main_thread()
        assert is_free.wait(60)
        return find(wanted)

    vars(checks)["check"] = held

    async def run() -> None:
        known = checks.text_of(request())
        slow = asyncio.ensure_future(checks.text_of(request(regex="a+")))
        await asyncio.to_thread(is_held.wait)
        for _ in range(1000):  # turns of the loop, in each of which streams could be served
            await asyncio.sleep(0)
        assert await known == "" and not slow.done()
        is_free.set()
        assert await slow

    asyncio.run(run())


def test_compiling_leaves_the_interpreter_to_others() -> None:
    """It takes some 100 ms. Without the lock of the interpreter, this thread could do next to nothing meanwhile."""
    checks, wanted, num_steps = GrammarChecks(), Asked("guided_json", "json", LARGE), 0
    with ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(checks.check, wanted)
        while not compiled.done():
            num_steps += 1
    assert isinstance(compiled.result(), str) and num_steps > 10_000


def test_what_was_found_is_remembered_up_to_a_number() -> None:
    checks, compiled = GrammarChecks(), list[str]()
    found = checks.check

    def counted(wanted: Asked) -> str | BadRequest:
        compiled.append(wanted.source)
        return found(wanted)

    vars(checks)["check"] = counted
    for number in (*range(MAX_REMEMBERED), 0, MAX_REMEMBERED, 0, 1):
        text(checks, {"regex": f"a{number}"})
    assert len(compiled) == MAX_REMEMBERED + 2, "the second a1 was compiled again, a0 was not"


def test_long_grammars_are_forgotten_sooner() -> None:
    checks = GrammarChecks()
    vars(checks)["check"] = lambda wanted: "x" * (MAX_REMEMBERED_CHARS // 4)
    for number in range(6):
        text(checks, {"regex": f"a{number}"})
    assert len(checks._known) == 3 and checks._num_chars < MAX_REMEMBERED_CHARS


def test_a_choice_of_thousands_of_texts_can_be_followed() -> None:
    checks, texts = GrammarChecks(), [f"{number} foxes" for number in range(MAX_CHOICES)]
    matcher = LLMatcher(checks._tokenizer, text(checks, {"guided_choice": texts}), log_level=0, limits=limits())
    assert matcher.consume_tokens(list(texts[-1].encode())) and matcher.is_accepting(), matcher.get_error()


def test_white_space_between_parts_of_json_is_bounded() -> None:
    whole = text(GrammarChecks(), {"guided_json": SCHEMA})
    compact = text(GrammarChecks(), {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}})
    assert "{0,24}" in whole and "whitespace_flexible" in compact


def test_a_wait_for_the_grammars_of_others_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = GrammarChecks()
    monkeypatch.setattr(grammars, "MAX_WAIT_S", 0)

    async def run() -> None:
        async with checks._turn():
            with pytest.raises(Overloaded, match="the grammars of others"):
                await checks.text_of(request(regex="a+"))
        monkeypatch.undo()
        assert await checks.text_of(request(regex="a+"))

    asyncio.run(run())


@pytest.mark.parametrize(
    "source",
    [
        '\n\n   start: "a"',
        '# told\nstart : "a"',
        '%llguidance {}\nstart: "a"',
        'root ::= "a"',
        "\n" * 99 + 'root ::= "a"',
    ],
)
def test_both_spellings_of_ebnf_are_understood(source: str) -> None:
    assert text(GrammarChecks(), {"ebnf": source})


def test_rules_that_take_long_to_convert_are_refused() -> None:
    chain = "\n".join(f'r{place} ::= "x" r{place + 1}' for place in range(5000))
    found = GrammarChecks().check(Asked("ebnf", "ebnf", f'root ::= r0\n{chain}\nr5000 ::= "y"'))
    assert isinstance(found, BadRequest) and "got 5002 rules of" in found.message


def test_triggers_have_a_bound() -> None:
    tag = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"] * 257}
    found = GrammarChecks().check(Asked("structural_tag", "tags", tag))
    assert isinstance(found, BadRequest) and "as many `triggers`" in found.message
