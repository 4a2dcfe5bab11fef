"""Each hostile grammar is followed within its bounds, or refused in one sentence. Some kill what tries them. So are
schemas of tools, which the sentence names as the client has written them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.dialects.openai.fields import ChatRequest, parse
from gateway.dialects.openai.read import ask_of_chat
from gateway.generation.grammars.trial_child import TrialChild, trial_command
from gateway.generation.translate import Translator
from gateway.text.answer_format import AnswerFormat
from gateway.text.channels.formats import HERMES
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format
from gateway.text.chat_template import ChatTemplates
from gateway.text.model_folder import read_model_folder
from gateway.text.tokenizer import load_tokenizer
from gateway.words.places import named
from gateway.words.strict_json import parse_json
from models.train.train import STORY_FOLDER
from protocol.errors import BadRequest
from protocol.grammar import MAX_GRAMMAR_CHARS
from tests.fuzz.served.hostile import hostile, hostile_tools
from tests.gateway.text.channels import templates

NAMES = tuple(hostile(0))
TOOLS = tuple(hostile_tools(0))


@pytest.fixture(scope="module")
def child() -> Iterator[TrialChild]:
    """Some of them kill the process that tries them."""
    made = TrialChild(trial_command(Path(STORY_FOLDER), 1024))
    yield made
    made.close()


def refusal(name: str, child: TrialChild) -> str:
    """Why it is refused; "" if it is not."""
    body = {"messages": [{"role": "user", "content": "hi"}], **hostile(0)[name]}
    try:
        wanted = ask_of_chat(parse(ChatRequest, parse_json(json.dumps(body).encode()))).shape
        assert wanted is not None
        found = child.check(wanted)
    except BadRequest as error:
        return error.message
    if isinstance(found, BadRequest):
        return found.message
    assert 0 < len(found) <= MAX_GRAMMAR_CHARS
    return ""


@pytest.fixture(scope="module")
def translator() -> Translator:
    """The parser of the bundled model, with a template that has tools."""
    tokenizer = load_tokenizer(STORY_FOLDER)
    answers = AnswerFormat(Markers(Format(HERMES), lambda _: None), "hermes")
    sources = ChatTemplates({"default": templates.QWEN}, {})
    return Translator(read_model_folder(STORY_FOLDER), tokenizer, sources, answers=answers)


def refusal_of_tools(name: str, child: TrialChild, translator: Translator) -> tuple[str, str]:
    """The field that is refused, and why; "" if it is not."""
    body = {"messages": [{"role": "user", "content": "hi"}], **hostile_tools(0)[name]}
    try:
        asked = ask_of_chat(parse(ChatRequest, parse_json(json.dumps(body).encode())))
        wanted = translator.shape_of(asked)
        assert wanted is not None and wanted.kind == "calls"
        with named(asked.origins):
            found = child.check(wanted)
            if isinstance(found, BadRequest):
                raise found
    except BadRequest as error:
        return error.param or "", error.message
    assert 0 < len(found) <= MAX_GRAMMAR_CHARS
    return "", ""


@pytest.mark.slow
@pytest.mark.broad
@pytest.mark.parametrize("name", TOOLS)
def test_each_set_of_tools_is_followed_or_refused_by_its_name(
    name: str, child: TrialChild, translator: Translator
) -> None:
    field, why = refusal_of_tools(name, child, translator)
    assert not why or ("\n" not in why and 10 < len(why) < 450)
    if name == "objects 400 deep":
        assert why == "the body is nested deeper than 200 levels"
    else:
        assert bool(why) == bool(field) and field.split(".")[0] in ("", "tools")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_is_followed_or_refused_in_one_sentence(name: str, child: TrialChild) -> None:
    why = refusal(name, child)
    assert not why or ("\n" not in why and 10 < len(why) < 450)


def test_no_two_turns_ask_for_the_same() -> None:
    for make in (hostile, hostile_tools):
        one, other = make(0), make(1)
        assert all(one[name] != other[name] for name in one)
    one = hostile(0)
    assert max(len(json.dumps(fields)) for fields in one.values()) > 1024 * 1024
