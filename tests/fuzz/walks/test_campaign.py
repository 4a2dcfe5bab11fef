"""The walks find what they are for: a schema that is not followed, an answer that cannot go on, an untrue refusal, a
child that dies; and they find nothing in what the gateway does."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gateway.generation.grammars import schemas as grammar_schemas
from gateway.generation.grammars import texts as grammar_texts
from tests.fuzz.fuzzing import Answer, Child
from tests.fuzz.walks.campaign import Options, Totals, run
from tests.fuzz.walks.child import answer
from tests.fuzz.walks.kinds import KINDS
from tests.fuzz.walks.trying import schema_of
from tests.fuzz.walks.walking import STYLES

SEED = 3


def walked(folder: Path, number: int = 60, kind: str = "any") -> Totals:
    def read(each: int) -> Answer:
        return Answer(**json.loads(answer(kind, SEED, each)))

    return run(Options(kind, SEED, 0, number, folder), read, lambda _: None, Event())


def strict_as(change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that makes its grammars of changed schemas."""
    right = grammar_schemas.strict_schema
    monkeypatch.setattr(grammar_texts, "strict_schema", lambda schema, compact=False: right(change(schema)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gateway_follows_or_refuses_truly(kind: str, tmp_path: Path) -> None:
    totals = walked(tmp_path, kind=kind)
    assert totals.found.total() == 0 and not list(tmp_path.iterdir())
    assert totals.num_schemas == 60 and 10 < totals.refused.total() < 50
    assert totals.walks["valid"] > 60, "walks end"


def test_answers_of_another_schema_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict_as(lambda _: {"type": "object"}, monkeypatch)
    totals = walked(tmp_path)
    assert totals.found["does not follow"] > 60
    stored = json.loads(next(tmp_path.glob("does-not-follow*")).read_text())
    assert stored["schema"] == schema_of("any", SEED, stored["number"]) and stored["answer"].startswith("{")


def test_answers_that_cannot_go_on_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = '{"grammars": [{"lark_grammar": "start: \\"{\\" TEXT\\nTEXT: /a/ & /b/"}]}'
    monkeypatch.setattr(grammar_texts, "_text", lambda _: empty)
    assert walked(tmp_path, 5).found["dead end"] == 5 * len(STYLES)


@pytest.mark.parametrize(
    "sentence", ["Unsatisfiable schema: no reason", 'Unimplemented keys: ["no-such"]', "new words"]
)
def test_refusals_that_are_not_true_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentence: str) -> None:
    def refused(_: Any) -> Any:
        raise ValueError(sentence)

    strict_as(refused, monkeypatch)
    monkeypatch.setitem(KINDS, "any", lambda _: {"enum": ["a", 1]})
    assert walked(tmp_path, 5).found["untrue refusal"] == 5


def test_a_child_that_dies_and_an_error_of_no_refusal_are_findings(tmp_path: Path) -> None:
    answers = iter([Answer(died="ended with -11"), Answer(wrong="Traceback")])
    totals = run(Options("any", SEED, 0, 2, tmp_path), lambda _: next(answers), lambda _: None, Event())
    assert totals.found == {"died": 1, "raised": 1}
    assert "| accepted | 0 | 0.00% |" in totals.table()


def test_it_ends_where_it_is_told_to(tmp_path: Path) -> None:
    stop = Event()

    def told(_: int) -> Answer:
        stop.set()
        return Answer(died="ended with -11")

    assert run(Options("any", SEED, 0, 60, tmp_path), told, lambda _: None, stop).num_schemas == 1


def test_the_real_child_tries_a_schema() -> None:
    child = Child([sys.executable, "-m", "tests.fuzz.walks.child", "any", str(SEED)])
    found = [child.read(str(number).encode()) for number in range(3)]
    child.close()
    assert found == [Answer(**json.loads(answer("any", SEED, number))) for number in range(3)]
