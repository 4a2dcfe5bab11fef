"""Each hostile grammar is compiled within its bounds, or refused in one sentence, at the gateway and at a worker."""

import json
from pathlib import Path

import pytest

from bench.grammar.hostile import hostile
from gateway.grammars import Asked, asked
from gateway.schemas import ChatRequest, parse, parse_json
from models.train.train import STORY_FOLDER
from protocol.errors import BadRequest, GrammarFault
from protocol.grammar import MAX_GRAMMAR_CHARS
from runtime.grammars import compile_grammar
from runtime.vocabulary import Vocabulary, load_vocabulary
from tests.byte_grammars import check

NAMES = tuple(hostile(0))


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(Path(STORY_FOLDER), 1024)


def refusal(name: str, vocabulary: Vocabulary) -> str:
    """Why it is refused; "" if it is not."""
    body = {"messages": [{"role": "user", "content": "hi"}], **hostile(0)[name]}
    try:
        wanted = asked(parse(ChatRequest, parse_json(json.dumps(body).encode())))
        assert isinstance(wanted, Asked)
        text = check(wanted)
        if isinstance(text, BadRequest):
            return text.message
        assert len(text) <= MAX_GRAMMAR_CHARS
        compile_grammar(text, vocabulary)
    except (BadRequest, GrammarFault) as error:
        return error.message
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_is_compiled_or_refused_in_one_sentence(name: str, vocabulary: Vocabulary) -> None:
    why = refusal(name, vocabulary)
    assert not why or ("\n" not in why and 10 < len(why) < 450)


def test_no_two_turns_ask_for_the_same() -> None:
    one, other = hostile(0), hostile(1)
    assert all(one[name] != other[name] for name in NAMES)
    assert max(len(json.dumps(fields)) for fields in one.values()) > 1024 * 1024
