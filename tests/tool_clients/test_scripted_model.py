"""The scripted model reads a prompt of the template, and says the first of its answers that the grammar allows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from protocol.messages_gateway import Assign, SamplingParams
from tests.gateway.folders import EOS, marked_tokenizer, write_folder
from tests.gateway.text.channels.templates import QWEN, renderer
from tests.gateway.tool_answers import MARKERS
from tests.tool_clients.scripted_model import JSON, SENTENCE, THOUGHT, ScriptedModel

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("get_weather", "get_time")
]
QUESTION = "What is the weather in 'Oslo' for 3 days?"
WEATHER_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'


@pytest.fixture
def model(tmp_path: Path) -> ScriptedModel:
    return ScriptedModel(write_folder(tmp_path, marked_tokenizer(MARKERS), template=QWEN))


def said(
    model: ScriptedModel, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]], grammar: str = ""
) -> str:
    """The model's answer to a conversation, which it must end."""
    prompt = renderer(QWEN)([{"content": "", **message} for message in messages], tools)
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    prompt_ids = tuple(tokenizer.encode(prompt, add_special_tokens=False).ids)
    assign = Assign("r", 0, prompt_ids, SamplingParams(max_tokens=500), 1, None, grammar=grammar)
    *token_ids, last = model(assign, 0)
    assert last == EOS
    return str(tokenizer.decode(token_ids, skip_special_tokens=False))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_it_calls_the_tools_that_a_question_names_with_what_the_question_says(model: ScriptedModel) -> None:
    assert said(model, [user(QUESTION)], TOOLS) == f"{THOUGHT}Well.\n{WEATHER_CALL}"
    both = said(model, [user("Weather and time in 'Oslo'?")], TOOLS)
    assert [name in both for name in ("get_weather", "get_time")] == [True, True]


@pytest.mark.parametrize(
    "messages, tools",
    [
        ([user("Hello")], TOOLS),
        ([user(QUESTION)], []),
        ([user(QUESTION), {"role": "assistant"}, {"role": "tool", "content": "rain"}], TOOLS),
    ],
    ids=["no tool is named", "no tools", "results are there"],
)
def test_it_says_a_sentence_else(
    model: ScriptedModel, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    assert said(model, messages, tools) == SENTENCE


def test_results_of_an_earlier_question_do_not_count(model: ScriptedModel) -> None:
    earlier = [user(QUESTION), {"role": "assistant"}, {"role": "tool", "content": "rain"}, {"role": "assistant"}]
    assert WEATHER_CALL in said(model, [*earlier, user(QUESTION)], TOOLS)


def test_it_says_what_a_grammar_allows(model: ScriptedModel) -> None:
    keys = {name: {"type": ["string", "number"]} for name in JSON[1]}
    schema = {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}
    grammar = json.dumps({"grammars": [{"json_schema": schema}]})
    assert json.loads(said(model, [user("Hello")], TOOLS, grammar)) == JSON[1]
    assert model.unfit == []


def test_a_grammar_without_an_answer_is_noted(model: ScriptedModel) -> None:
    assert said(model, [user("Hello")], TOOLS, "start: /[0-9]{9}/") == ""
    assert model.unfit == ["Hello"]
