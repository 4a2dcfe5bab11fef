"""Files become conversations, and a broken line is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.work.conversations import Conversation, Turn
from loadtest.work.datasets import custom, prompts, sharegpt
from loadtest.work.lengths import Lengths
from protocol.errors import ConfigError

SEVEN = Lengths("fixed", 7)
Reader = Callable[[str], Any]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "data"
        path.write_text(text)
        return str(path)

    return write


def chat(*said: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": text} for who, text in said]}


def test_sharegpt_keeps_what_people_said_and_how_long_answers_were(file: Callable[[str], str]) -> None:
    entries = [
        chat(("human", "hello"), ("gpt", "one two three"), ("human", "more"), ("gpt", "four")),
        chat(("system", "be kind"), ("human", "hi"), ("gpt", "")),
        chat(("gpt", "nobody asked")),
    ]
    path = file(json.dumps(entries))
    work = sharegpt(path, None, 9, 0)
    assert work.found == [
        Conversation((Turn("hello", 4), Turn("more", 1))),
        Conversation((Turn("hi", 1),)),
    ]
    assert sharegpt(path, SEVEN, 1, 0).found[0] == Conversation((Turn("hello", 7),))
    endless = work.conversations(3)
    assert {next(endless).key for _ in range(4)} == {conversation.key for conversation in work.found}


def test_lines_are_prompts(file: Callable[[str], str]) -> None:
    assert [conversation.turns for conversation in prompts(file("a b\n\n c\n"), SEVEN, 0).found] == [
        (Turn("a b", 7),),
        (Turn(" c", 7),),
    ]
    path = file('{"prompt": "x", "output_tokens": 3}\n{"prompt": "y"}\n')
    assert [conversation.turns for conversation in custom(path, SEVEN, 0).found] == [(Turn("x", 3),), (Turn("y", 7),)]


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (lambda path: sharegpt(path, None, 9, 0), "{}", "got dict, expected a list"),
        (lambda path: sharegpt(path, None, 9, 0), "[", "is not JSON"),
        (lambda path: sharegpt(path, None, 9, 0), "[3]", 'entry 1: got 3, expected an object with "conversations"'),
        (lambda path: sharegpt(path, None, 9, 0), '[{"conversations": [7]}]', "entry 1: got 7, expected parts"),
        (lambda path: sharegpt(path, None, 9, 0), "[]", "expected one at least in which a human speaks"),
        (
            lambda path: custom(path, SEVEN, 0),
            '{"prompt": "x"}\nnonsense',
            "line 2: got nonsense, expected a JSON object",
        ),
        (lambda path: custom(path, SEVEN, 0), '{"text": "x"}', 'line 1: .* expected an object with "prompt"'),
        (lambda path: custom(path, SEVEN, 0), '{"prompt": "x", "output_tokens": 0}', "line 1: got 0, expected"),
        (lambda path: prompts(path, SEVEN, 0), "\n\n", "is empty"),
    ],
)
def test_a_broken_file_is_one_sentence(read: Reader, text: str, words: str, file: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match=words):
        read(file(text))


def test_a_missing_file_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^--dataset-path: cannot read 'nowhere': No such file"):
        prompts("nowhere", SEVEN, 0)
