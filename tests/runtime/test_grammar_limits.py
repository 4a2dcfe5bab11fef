import json
from typing import Any

import pytest

from gateway.words.request import Grammar
from runtime.grammar_limits import MAX_ITEMS_IN_ROW, MAX_SCHEMA_ITEMS, limits
from tests.byte_grammars import check

SCHEMA = {"json_schema": {"type": "object"}}
RULES = {"lark_grammar": 'start: "a"'}


@pytest.mark.parametrize(
    ("grammar", "is_schema"),
    [
        ({"grammars": [SCHEMA]}, True),
        ({"grammars": [SCHEMA, SCHEMA]}, True),
        ({"grammars": [SCHEMA, RULES]}, False),
        ({"grammars": [{**SCHEMA, **RULES}]}, False),
        ({"grammars": [RULES]}, False),
        ({"grammars": [[]]}, False),
        ({"grammars": {}}, False),
        ({}, False),
    ],
)
def test_only_schemas_may_have_many_items_in_a_row(grammar: Any, is_schema: bool) -> None:
    assert limits(json.dumps(grammar)).max_items_in_row == (MAX_SCHEMA_ITEMS if is_schema else MAX_ITEMS_IN_ROW)


@pytest.mark.parametrize("text", ["", "start: %json {}", "{", '{"a":' * 100_000])
def test_other_texts_are_no_schemas(text: str) -> None:
    assert limits(text).max_items_in_row == MAX_ITEMS_IN_ROW


def test_an_object_may_leave_out_hundreds_of_properties() -> None:
    """Four items for each."""
    for num, is_followed in ((400, True), (600, False)):
        properties = {f"k{place}": {"type": "integer"} for place in range(num)}
        found = check(Grammar("json", {"type": "object", "properties": properties}))
        assert isinstance(found, str) is is_followed, found
