"""Grammars of calls: random answers that follow them are read back as calls that are valid."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import jsonschema
import pytest

from gateway.generation.conversations import MAX_TOOLS
from gateway.generation.grammars.refused import GrammarRefused
from gateway.generation.grammars.texts import text_of as text_of_grammar
from gateway.generation.grammars.trials import Trials
from gateway.text.channels.fold import Whole
from gateway.words.places import TOOLS
from gateway.words.request import Choice, Named, Tool
from protocol.grammar import MAX_GRAMMAR_CHARS
from tests.doubles.clock import VirtualClock
from tests.gateway.generation.call_walks import Model, asked_of, drawn, model_of, random_tools, read, text_of
from tests.gateway.text.channels.templates import GLM, HERMES, MINIMAX, QWEN_CODER, SEED, assistant, renderer

FORMATS = ("hermes", "minimax", "qwen3_coder", "minimax_m2", "seed_oss", "glm")
STRING = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


class Slow:
    """A clock of work, on which each look takes 0.3 s."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        self._now += 0.3
        return self._now


def check_calls(whole: Whole, tools: Sequence[Tool], text: str) -> None:
    """Each call is of a known tool, and its arguments follow the tool's schema."""
    schemas = {tool.name: tool.schema for tool in tools}
    for call in whole.calls:
        assert call.name in schemas, text
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


def answered(model: Model, tools: Sequence[Tool], rng: Random, choice: Choice, **more: Any) -> tuple[Whole, str]:
    """An answer, as the channels read it and as it was written."""
    asked = asked_of(model, tools, choice, **more)
    assert asked is not None
    answer = drawn(model, asked, rng, rng.choice((0, 10, 60)))
    text = text_of(model, answer.tokens)
    assert answer.has_ended, text
    return read(model, answer.tokens, tools, opened=more.get("opened", False)), text


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("with_tokens", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_answers_that_must_call_are_read_as_valid_calls(name: str, with_tokens: bool, opened: bool) -> None:
    model, numbers = model_of(name, with_tokens), set[int]()
    for seed in range(12):
        rng = Random(f"{name} {with_tokens} {opened} {seed}")
        tools, parallel = random_tools(rng, strict=False), seed % 3 != 0
        whole, text = answered(model, tools, rng, "required", parallel=parallel, opened=opened)
        check_calls(whole, tools, text)
        assert whole.calls and not whole.text.strip(), text
        numbers.add(len(whole.calls))
        assert parallel or len(whole.calls) == 1, text
    assert 1 in numbers


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_that_is_named_is_called_once(name: str) -> None:
    model = model_of(name, True)
    for seed in range(6):
        rng = Random(f"{name} {seed}")
        tools = random_tools(rng, strict=False)
        wanted = rng.choice(tools).name
        whole, text = answered(model, tools, rng, Named(wanted))
        check_calls(whole, tools, text)
        assert [call.name for call in whole.calls] == [wanted], text


@pytest.mark.parametrize("with_tokens", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_text_may_stand_around_calls_of_strict_tools(name: str, with_tokens: bool) -> None:
    model, has_called = model_of(name, with_tokens), False
    for seed in range(12):
        rng = Random(f"{name} {with_tokens} {seed}")
        tools, parallel = random_tools(rng), seed % 3 != 0
        whole, text = answered(model, tools, rng, "auto", parallel=parallel, opened=seed % 2 == 0)
        check_calls(whole, tools, text)
        assert parallel or len(whole.calls) <= 1, text
        has_called |= bool(whole.calls)
        assert with_tokens is False or text.count(model.markers.format.calls.opening) <= len(whole.calls), text  # type: ignore[union-attr]
    asked = asked_of(model, [Tool("f", schema=STRING, strict=True)], "auto")
    assert asked is not None and asked.source["is_forced"] is False


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_an_answer_that_may_be_anything_has_no_grammar(choice: Choice) -> None:
    tools = [Tool("f", schema=STRING, strict=choice == "none")]
    assert asked_of(model_of("hermes", True), tools, choice) is None
    assert asked_of(model_of("hermes", True), [], "auto") is None


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_budget_of_reasoning_tokens_is_kept(choice: Choice, budget: int, opened: bool) -> None:
    model, longest = model_of("qwen3_coder", True), 0
    tags = model.markers.format.reasoning
    assert tags is not None
    ids = {marker: token for token, marker in model.markers.by_id.items()}
    asked = asked_of(model, [Tool("f", schema=STRING)], choice, opened=opened, budget=budget)
    assert asked is not None
    for seed in range(8):
        rng = Random(seed)
        tokens = drawn(model, asked, rng, 40, first=() if opened else (ids[tags.opening],)).tokens
        size = tokens.index(ids[tags.closing]) - (not opened)
        assert 0 <= size <= budget
        longest = max(longest, size)
    assert longest == budget, "random thoughts reach the bound"


def test_a_budget_may_end_within_a_character() -> None:
    model, budget = model_of("hermes", True), 5
    texts, ids = model.vocabulary.tokens, {marker: token for token, marker in model.markers.by_id.items()}
    asked = asked_of(model, [], "auto", opened=True, budget=budget)
    assert asked is not None
    thoughts = [*[texts.index(b"a")] * (budget - 1), texts.index(b"\xf0")]
    assert drawn(model, asked, Random(1), budget, first=thoughts).tokens[: budget + 1] == [*thoughts, ids["</think>"]]


@pytest.mark.parametrize(
    ("schema", "name", "what"),
    [
        ({"type": "string"}, "hermes", "expected 'object'"),
        ({"type": "string"}, "glm", "expected 'object'"),
        ({"not": {}}, "hermes", "cannot be followed"),
        ({"properties": {"a": False}, "required": ["a"]}, "hermes", "cannot be followed"),
        ({"properties": {"a": {"type": "string", "pattern": "^x$"}}}, "qwen3_coder", "got 'pattern'"),
        ({"properties": {"a>": {"type": "string"}}}, "qwen3_coder", "no tag of this model's calls can hold"),
        ({"properties": {"a": {}}, "minProperties": 1}, "glm", "got 'minProperties'"),
        ({"properties": {"a": {"enum": ["</arg_value>"]}}, "required": ["a"]}, "glm", "cannot be followed"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "hermes", "leads to itself"),
        ({"properties": {"a": {"type": "string", "enum": [1]}}}, "seed_oss", "a: no text follows its schema"),
        ({"type": "object", "maxProperties": 0, "required": ["a"]}, "hermes", "cannot be followed"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_at_its_tool(schema: dict[str, Any], name: str, what: str) -> None:
    model = model_of(name, True)
    asked = asked_of(model, [Tool("good", schema=STRING), Tool("bad", schema=schema)], "required")
    assert asked is not None
    refused = Trials(model.vocabulary, VirtualClock()).of(asked)
    assert isinstance(refused, GrammarRefused)
    assert refused.at == ("prompts", 0, "tools", 1, "schema") and what in refused.what


@pytest.mark.parametrize("with_tokens", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_as_many_tools_as_a_request_may_have_make_one_grammar(name: str, with_tokens: bool) -> None:
    model = model_of(name, with_tokens)
    tools = [Tool(f"tool_{number}", schema=STRING, strict=True) for number in range(MAX_TOOLS)]
    whole, written = answered(model, tools, Random(7), "required")
    check_calls(whole, tools, written)
    assert whole.calls


def test_tools_that_make_too_long_a_grammar_are_refused_at_all_of_them() -> None:
    model = model_of("hermes", True)
    tools = [Tool(f"tool_{number}", schema={"required": [f"name {number}" * 4]}) for number in range(MAX_TOOLS)]
    asked = asked_of(model, tools, "required")
    assert asked is not None
    with pytest.raises(GrammarRefused, match=f"characters as a grammar, expected at most {MAX_GRAMMAR_CHARS}") as told:
        text_of_grammar(asked)
    assert told.value.at == TOOLS


def test_answers_of_each_tool_are_walked_by_themselves_the_longest_schema_first() -> None:
    """Behind thoughts and text, random answers would hardly come to a call. Here each token takes too much work."""
    model = model_of("hermes", True)
    longer = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
    tools = [Tool("short", schema=STRING), Tool("long", schema=longer), Tool("last", schema=STRING)]
    asked = asked_of(model, tools, "required", opened=True)
    assert asked is not None
    refused = Trials(model.vocabulary, Slow()).of(asked)
    assert isinstance(refused, GrammarRefused) and "one token takes 0.30 s of work" in refused.what
    assert refused.at == ("prompts", 0, "tools", 1, "schema")


@pytest.mark.parametrize(
    ("name", "template"),
    [("hermes", HERMES), ("qwen3_coder", QWEN_CODER), ("minimax_m2", MINIMAX), ("seed_oss", SEED), ("glm", GLM)],
)
def test_calls_are_written_as_the_template_writes_them(name: str, template: str) -> None:
    """So the next prompt begins with the tokens of this answer, whose pages are cached."""
    model, render = model_of(name, True), renderer(template)
    value: dict[str, Any] = {
        "type": "object",
        "properties": {"x": {"enum": ['é \\ "', 7, None]}, "y": {"type": "boolean"}},
    }
    value = {**value, "required": ["x", "y"], "additionalProperties": False}
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 9},
            "list": {"type": "array", "items": value, "minItems": 2, "maxItems": 3},
        },
        "required": ["text", "list"],
        "additionalProperties": False,
    }
    for seed in range(8):
        rng = Random(f"{name} {seed}")
        tools = [Tool("f", schema=schema), Tool("fg", schema=schema)]
        whole, text = answered(model, tools, rng, "required")
        calls = [(call.name, json.loads(call.arguments)) for call in whole.calls]
        rendered = render([assistant("", "", calls)], [])
        body = text.partition("</think>")[2] or text
        assert body.strip() in rendered, (body, rendered)
