"""Each hostile grammar is followed within its bounds, or refused in one sentence. Some kill what tries them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.dialects.openai.fields import ChatRequest, parse
from gateway.dialects.openai.read import ask_of_chat
from gateway.generation.grammars.trial_child import TrialChild, trial_command
from gateway.words.strict_json import parse_json
from models.train.train import STORY_FOLDER
from protocol.errors import BadRequest
from protocol.grammar import MAX_GRAMMAR_CHARS
from tests.fuzz.served.hostile import hostile

NAMES = tuple(hostile(0))


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


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_is_followed_or_refused_in_one_sentence(name: str, child: TrialChild) -> None:
    why = refusal(name, child)
    assert not why or ("\n" not in why and 10 < len(why) < 450)


def test_no_two_turns_ask_for_the_same() -> None:
    one, other = hostile(0), hostile(1)
    assert all(one[name] != other[name] for name in NAMES)
    assert max(len(json.dumps(fields)) for fields in one.values()) > 1024 * 1024
