"""The bodies of the fuzzer: one seed gives the same ones, every family is among them, and each keeps its bounds."""

import json
from collections import Counter
from random import Random

import pytest

from tests.fuzz.served import asks
from tests.fuzz.served.asks import CALM_FIELDS, MAX_BODY, ask
from tests.fuzz.served.schemas import schema

NUMBERS = range(300)


@pytest.fixture(autouse=True)
def own_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public suite may not be downloaded."""
    monkeypatch.setattr(asks, "suite", lambda: [schema(Random(place)) for place in range(20)])


def test_the_same_seed_and_number_make_the_same_body_whatever_was_asked_before() -> None:
    bodies = [ask(3, number).raw for number in NUMBERS]
    assert bodies[::-1] == [ask(3, number).raw for number in reversed(NUMBERS)]
    assert len(set(bodies)) == len(bodies)
    assert sum(one == ask(4, number).raw for number, one in enumerate(bodies)) == 0


def test_every_family_comes_within_its_bounds_and_in_every_field() -> None:
    families, fields, lengths = Counter[str](), Counter[str](), []
    for number in range(1500):
        found = ask(1, number)
        families[found.family] += 1
        fields[found.grammar] += 1
        lengths.append(len(found.raw))
    assert set(families) == set(asks._FAMILIES)
    names = "guided_json guided_regex guided_choice guided_grammar json_schema regex ebnf structural_tag"
    assert set(fields) == {*names.split(), "response_format", "structured_outputs", "tools", ""}
    assert max(lengths) <= MAX_BODY and max(lengths) > MAX_BODY / 2


def test_a_body_with_a_known_field_is_json_and_its_calm_form_has_no_grammar() -> None:
    for number in NUMBERS:
        found = ask(1, number)
        body, calm = (json.loads(found.raw) if found.grammar else None), json.loads(found.calm())
        assert set(calm) <= set(CALM_FIELDS)
        own = (found.grammar, "tool_choice")
        assert body is None or {name: value for name, value in body.items() if name not in own} == calm
        assert body is None or found.grammar in body


def test_a_mark_changes_grammars_and_no_rule() -> None:
    """Where there is room for one: in objects, and in grammars of rules."""
    num_changed = 0
    for number in NUMBERS:
        found, marked = ask(1, number), ask(1, number, "turn 1")
        assert (found.rule, found.grammar, found.family) == (marked.rule, marked.grammar, marked.family)
        num_changed += found.raw != marked.raw
    assert num_changed > 100
