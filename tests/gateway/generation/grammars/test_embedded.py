import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.grammars.embedded import embedded_schema
from gateway.generation.grammars.schemas import strict_schema
from gateway.words.request import Grammar
from protocol.errors import BadRequest
from runtime.grammar_limits import MAX_SCHEMA_ITEMS, limits
from tests.byte_grammars import allows, check

ABOVE_0 = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}  # llguidance alone allows 0, too
SCHEMA = {"json_schema": ABOVE_0}
OF_GUIDANCE = {  # what guidance 0.3.1 sends with each schema
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
    "lenient": False,
}


def asked(*grammars: Any, **others: Any) -> str | BadRequest:
    return check(Grammar("ebnf", " " + json.dumps({"grammars": grammars, **others})))


# ---- llguidance's own form ----


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.booleans())
def test_each_schema_of_the_own_form_is_followed(are_embedded: list[bool], has_nulls: bool) -> None:
    """Each is a grammar of its own, or embedded in one in Lark's spelling."""
    nulls = {"max_tokens": None} if has_nulls else {}
    parts = []
    for place, is_embedded in enumerate(are_embedded):
        lark = {"lark_grammar": f"start: %json {json.dumps(ABOVE_0)}", **({"json_schema": None} if has_nulls else {})}
        parts.append({"name": f"part-{place}", **(lark if is_embedded else SCHEMA)})
    start = {"lark_grammar": "start: " + ' "," '.join(f"@part-{place}" for place in range(len(parts)))}
    found = asked(start, *parts, **nulls)
    right = ["0.5"] * len(parts)
    assert allows(found, ",".join(right))
    for place in range(len(parts)):
        assert not allows(found, ",".join([*right[:place], "0", *right[place + 1 :]]))


def test_a_schema_alone_has_the_limits_of_one() -> None:
    found = asked({"name": "a", **SCHEMA, "lark_grammar": None}, max_tokens=None)
    assert isinstance(found, str) and limits(found).max_items_in_row == MAX_SCHEMA_ITEMS
    assert allows(found, "0.5") and not allows(found, "0")


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"grammars": [SCHEMA], "max_tokens": 3}, "got max_tokens"),
        ({"grammars": [SCHEMA], "test_trace": True}, "got test_trace"),
        ({"grammars": []}, "expected an object with a list `grammars`"),
        ({"grammars": SCHEMA}, "expected an object with a list `grammars`"),
        ({}, "expected an object with a list `grammars`"),
        ({"grammars": [[None, ABOVE_0, None]]}, "grammars[0]: expected `json_schema` or `lark_grammar`"),
        ({"grammars": [SCHEMA, {**SCHEMA, "lark_grammar": 'start: "a"'}]}, "grammars[1]: expected"),
        ({"grammars": [{**SCHEMA, "nodes": []}]}, "grammars[0]: expected"),
        ({"grammars": [{"lark_grammar": ["start"]}]}, "grammars[0]: expected"),
        ({"grammars": [{"json_schema": 3}]}, "grammars[0]: expected a JSON schema"),
        ({"grammars": [{"json_schema": {"const": 2**53 + 1}}]}, "grammars[0]: const: got the number 9007199254740993"),
        ({"grammars": [{"json_schema": {"uniqueItems": True}}]}, "uniqueItems"),
        ({"grammars": [{"lark_grammar": 'start: "a"\nb: %json 3'}]}, "grammars[0]: line 2: expected a JSON schema"),
        (
            {"grammars": [{"lark_grammar": "start[max_tokens=2]: @a"}, {"name": "a", **SCHEMA}]},
            "grammars[0]: line 1: max_tokens of this rule",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_place(form: Any, why: str) -> None:
    found = check(Grammar("ebnf", json.dumps(form)))
    assert isinstance(found, BadRequest) and why in found.message


# ---- llguidance's own options ----


def test_options_that_guidance_sends_are_followed() -> None:
    schema = {"const": [1, {"a": 2}], "x-guidance": OF_GUIDANCE}
    for grammar in ({"json_schema": schema}, {"lark_grammar": f"start: %json {json.dumps(schema)}"}):
        found = asked(grammar)
        assert allows(found, '[1, {"a": 2}]') and not allows(found, '[1,{"a":2}]')


def test_json_is_compact_where_the_request_says_so_whatever_the_options_say() -> None:
    schema = {"const": [1, 2], "x-guidance": OF_GUIDANCE}
    assert embedded_schema(schema, compact=True) == strict_schema({"const": [1, 2]}, compact=True)
    assert embedded_schema({"const": 1, "x-guidance": {}}, compact=False) == strict_schema({"const": 1})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lenient": True}, "the option 'lenient' is not supported"),
        ({"whitespace_pattern": "x"}, "the option 'whitespace_pattern' is not supported"),
        ({"json_allowed_escapes": "u"}, "the option 'json_allowed_escapes' is not supported"),
        ({"item_separator": "x,"}, "got item_separator 'x,', expected ',' and spaces"),
        ({"key_separator": ","}, "got key_separator ',', expected ':' and spaces"),
        ({"key_separator": 3}, "got key_separator 3"),
        ([], "expected an object"),
    ],
)
def test_options_that_would_change_the_answer_are_refused(options: Any, why: str) -> None:
    found = asked({"json_schema": {"type": "array", "contains": {}, "x-guidance": options}})
    assert isinstance(found, BadRequest) and f"grammars[0]: x-guidance: {why}" in found.message


def test_a_lenient_option_of_the_grammar_is_not_one_of_its_schemas() -> None:
    source = '%llguidance {"lenient": true}\nstart: %json {"contains": {}}'
    found = check(Grammar("ebnf", source))
    assert isinstance(found, BadRequest) and "contains" in found.message
