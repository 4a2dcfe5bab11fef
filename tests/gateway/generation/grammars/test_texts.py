import json
from typing import Any

import pytest

from gateway.dialects.shared.grammar_fields import MAX_CHOICES
from gateway.generation.grammars import texts as grammar_texts
from gateway.generation.grammars.texts import MAX_RULES, MAX_TOLD
from gateway.words.request import Grammar
from protocol.errors import BadRequest
from runtime.native_stack import pool_with_stack
from tests.byte_grammars import allows, check, matcher_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def test_a_choice_of_thousands_of_texts_can_be_followed() -> None:
    texts = [f"{number} foxes" for number in range(MAX_CHOICES)]
    assert allows(check(Grammar("choice", texts)), texts[-1])


def test_white_space_between_parts_of_json_is_bounded() -> None:
    whole = check(Grammar("json", SCHEMA))
    compact = check(Grammar("json", SCHEMA, compact=True))
    assert isinstance(whole, str) and isinstance(compact, str)
    assert "{0,24}" in whole and "whitespace_flexible" in compact


@pytest.mark.parametrize(
    "source",
    [
        '\n\n   start: "a"',
        '# told\nstart : "a"',
        '%llguidance {}\nstart: "a"',
        '?start: "a"',
        '!start : "a"',
        '%ignore /b/\nstart: "a"',
        'root ::= start\nstart ::= "a"',
        'start::= "a"\nroot ::= start',
        'root ::= "a"',
        "\n" * 99 + 'root ::= "a"',
    ],
)
def test_both_spellings_of_ebnf_are_understood(source: str) -> None:
    assert isinstance(check(Grammar("ebnf", source)), str)


@pytest.mark.parametrize(("pattern", "answer"), [("a\\", None), ("\\", None), ("a\\\\", "a\\"), ("a/b\\/", "a/b/")])
def test_a_backslash_at_the_end_of_a_pattern_stands_for_nothing(pattern: str, answer: str | None) -> None:
    found = check(Grammar("regex", pattern))
    if answer is None:
        assert isinstance(found, BadRequest) and "a backslash at the end" in found.message
    else:
        assert allows(found, answer)


def test_a_rule_of_gbnf_may_be_named_start() -> None:
    source = 'root ::= start | "start" | [start]+ re-start # start\nstart ::= "a" # "start\nre-start ::= "b" start-of?'
    found = check(Grammar("ebnf", f'{source}\nstart-of ::= "c"'))
    texts = {"a": True, "start": True, "trab": True, "sbc": True, "start-of": False, "xb": False, "b": False}
    assert {text: allows(found, text) for text in texts} == texts


def test_rules_that_take_long_to_convert_are_refused() -> None:
    chain = "\n".join(f'r{place} ::= "x" r{place + 1}' for place in range(3000))
    found = check(Grammar("ebnf", f'root ::= r0\n{chain}\nr3000 ::= "y"'))
    assert isinstance(found, BadRequest) and "got 3002 rules of" in found.message


def test_triggers_have_a_bound() -> None:
    tag = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"] * 257}
    found = check(Grammar("tags", tag))
    assert isinstance(found, BadRequest) and "as many `triggers`" in found.message


def test_a_structural_tag_may_have_any_characters_and_be_compact() -> None:
    begin, end = '<\x7f\x01\u00fc\U0001f98a"%json {}>', "</\x7f>"
    tag = {"structures": [{"begin": begin, "schema": {"const": [0, 1]}, "end": end}], "triggers": ["<"]}
    spaced, compact = (f"a {begin}{text}{end} b" for text in ("[0, 1]", "[0,1]"))
    for is_compact in (False, True):
        matcher = matcher_of(str(check(Grammar("tags", tag, is_compact))))
        read = {text: matcher.deep_copy().validate_tokens(list(text.encode())) for text in (spaced, compact)}
        assert read[compact] == len(compact.encode()), matcher.get_error()
        assert (read[spaced] == len(spaced.encode())) is not is_compact


@pytest.mark.parametrize("rule", ["r{}: r{}", "?r{} : r{}", "!?r{}: r{}", 'r{}[capture="c"]: r{}', "r{} ::= r{}"])
def test_more_rules_than_a_stack_holds_calls_are_refused(rule: str) -> None:
    """Each rule names the next one."""
    first, (left, right) = "root ::= r0" if "::=" in rule else "start: r0", rule.rsplit("r{}", 1)
    pool = pool_with_stack(1, "trial")
    for num in (99, MAX_RULES + 1):
        chain = [rule.format(place, place + 1) for place in range(num)]
        asked = Grammar("ebnf", "\n".join([first, *chain, f'{left.format(num)}"x"{right}']))
        found = pool.submit(check, asked).result()
        if num < MAX_RULES:
            assert isinstance(found, str), found
        else:
            assert isinstance(found, BadRequest) and f"rules, expected at most {MAX_RULES}" in found.message
    pool.shutdown()


NUMBERS = [2**53 + 1, -(2**53) - 1, 2**63, -(2**63), -(2**63) + 1, 10**30, -(10**400), 1e300, -1e16]


@pytest.mark.parametrize(
    "number", NUMBERS, ids=lambda number: f"{number:.3}" if isinstance(number, float) else str(number)[:20]
)
@pytest.mark.parametrize("place", ["const", "enum", "minimum", "exclusiveMaximum", "multipleOf", "items", "maxLength"])
def test_numbers_that_are_no_exact_doubles_are_refused_wherever_they_stand(number: float, place: str) -> None:
    values: dict[str, Any] = {"enum": [1, number], "items": {"anyOf": [{"const": {"a": [number]}}]}}
    found = check(Grammar("json", {place: values.get(place, number)}))
    assert isinstance(found, BadRequest) and f"got the number {str(number)[:20]}" in found.message
    unused = check(Grammar("json", {"type": "boolean", "default": number, "examples": [number]}))
    assert isinstance(unused, str)


@pytest.mark.parametrize("number", [2**53, -(2**53), 0, -1, 0.5])
def test_numbers_up_to_the_bound_are_followed(number: float) -> None:
    found = check(Grammar("json", {"const": number}))
    assert allows(found, json.dumps(number))


def test_a_reason_is_told_whole_and_its_length_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"type": "integer"}, {"multipleOf": 0.7, "minimum": 1, "maximum": 4}]
    told = check(Grammar("json", {"allOf": parts}))
    assert isinstance(told, BadRequest) and told.message.endswith("allow too few of them, expected all in one part")

    def refused(_: Grammar) -> str:
        raise ValueError("x" * 1000)

    monkeypatch.setattr(grammar_texts, "_text", refused)
    told = check(Grammar("json", {}))
    assert isinstance(told, BadRequest) and told.message == f"shape.source: cannot be followed: {'x' * MAX_TOLD}..."
