"""The public JSON Schema test suite: what a grammar allows is valid, and what it cannot follow is refused."""

import json
from collections import Counter

import pytest

from tests.byte_grammars import allows, matcher_of, of_schema
from tests.schema_suite import DRAFTS, OPTIONAL, groups

# (accepted, refused) schemas of a draft.
COUNTS = {
    "draft2020-12": (205, 233),
    "draft2019-09": (211, 217),
    "draft7": (199, 112),
    "draft6": (191, 84),
    "draft4": (158, 40),
}


@pytest.mark.broad
@pytest.mark.parametrize("draft", DRAFTS)
def test_what_a_grammar_allows_is_valid(draft: str) -> None:
    found, wrong = Counter[str](), set[str]()
    for group in groups(draft):
        text = of_schema(group.schema)
        if not isinstance(text, str):
            found["refused"] += 1
            continue
        found["accepted"] += 1
        matcher = matcher_of(text)
        for value, is_valid in group.values:
            spellings = (json.dumps(value, ensure_ascii=False), json.dumps(value), json.dumps(value, indent=1))
            is_allowed = any(allows(matcher, each) for each in spellings)
            found[f"{is_valid} {is_allowed}"] += 1
            if is_allowed and not is_valid:
                wrong.add(group.where)
    assert wrong <= {group for group in OPTIONAL if group.startswith("content: ")}
    assert (found["accepted"], found["refused"]) == COUNTS[draft]
    assert found["True True"] > 0.9 * (found["True True"] + found["True False"]), "most valid values are answers"
