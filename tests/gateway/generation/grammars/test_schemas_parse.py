"""openai's `parse` with each type of docs/http.md's table: its answers are values of the type, or it is refused."""

import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from llguidance import LLMatcher
from openai.lib._parsing._completions import type_to_response_format_param
from pydantic import BaseModel, ValidationError, create_model

from gateway.dialects.shared.grammar_fields import GrammarFields
from gateway.generation.grammars.refused import GrammarRefused
from tests.byte_grammars import END, allows, check, matcher_of
from tests.gateway.parse_table import FOLLOWED, REFUSED, UNSAID, table

PAGE: Final = Path(__file__).resolve().parents[4] / "docs/http.md"
NUM_ANSWERS: Final = 12  # random ones of each type
SHORT: Final = 60  # bytes, from which on an answer ends as soon as it may
FOLLOWED_TYPES = [pytest.param(kind, bool(row.plain), id=row.constraint) for row in FOLLOWED for kind in row.types]
REFUSALS = [pytest.param(*each, id=row.constraint) for row in REFUSED for each in row.types]
UNSAID_VALUES = [pytest.param(*each, id=row.constraint) for row in UNSAID for each in row.types]
PLAIN_TYPES = [pytest.param(kind, id=row.constraint) for row in FOLLOWED if row.plain for kind in row.types]


def schemas_of(kind: Any) -> tuple[type[BaseModel], dict[str, Any], dict[str, Any]]:
    """A model with a value of this type, what `parse` sends for it, and its schema as Pydantic alone writes it."""
    model = create_model("Answer", value=(kind, ...))
    sent: Any = type_to_response_format_param(model)
    return model, sent, {"type": "json_schema", "json_schema": {"schema": model.model_json_schema()}}


def found(response_format: dict[str, Any]) -> str | GrammarRefused:
    [(name, wanted)] = GrammarFields.model_validate({"response_format": response_format}).grammars()
    assert name == "response_format"
    return check(wanted)


def answer_of(matcher: LLMatcher, rng: random.Random) -> bytes:
    """A random answer."""
    answer = b""
    while True:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert not matcher.is_error(), (answer, matcher.get_error())
        tokens = [int(token) for token in np.flatnonzero(bits)]
        if tokens == [END] or (END in tokens and (len(answer) > SHORT or rng.random() < 0.4)):
            return answer
        ends = [token for token in tokens if token in b'"]}'] or [token for token in tokens if token in b",:"]
        seen = [token for token in tokens if 0x20 < token < 0x7F]
        if len(answer) > SHORT or rng.random() < 0.2:
            tokens = ends or tokens
        elif rng.random() < 0.8:
            tokens = seen or tokens
        token = rng.choice([each for each in tokens if each != END])
        assert matcher.consume_token(token)
        answer += bytes([token])


@pytest.mark.parametrize(("kind", "is_only_parsed"), FOLLOWED_TYPES)
def test_answers_are_values_of_a_type_that_is_followed(kind: Any, is_only_parsed: bool) -> None:
    model, *formats = schemas_of(kind)
    for response_format in formats[:1] if is_only_parsed else formats:
        text = found(response_format)
        assert isinstance(text, str), text
        whole = matcher_of(text)
        for seed in range(NUM_ANSWERS):
            model.model_validate_json(answer_of(whole.deep_copy(), random.Random(seed)))


@pytest.mark.parametrize(("kind", "why"), REFUSALS)
def test_a_type_that_cannot_be_followed_is_refused_with_the_reason(kind: Any, why: str) -> None:
    for response_format in schemas_of(kind)[1:]:
        refused = found(response_format)
        assert isinstance(refused, GrammarRefused) and why in refused.what


@pytest.mark.parametrize(("kind", "value"), UNSAID_VALUES)
def test_what_a_schema_leaves_unsaid_is_allowed_and_the_type_refuses_it(kind: Any, value: str) -> None:
    model, *formats = schemas_of(kind)
    answer = f'{{"value":{value}}}'
    for response_format in formats:
        text = found(response_format)
        assert isinstance(text, str) and allows(text, answer), text
    with pytest.raises(ValidationError):
        model.model_validate_json(answer)


@pytest.mark.parametrize("kind", PLAIN_TYPES)
def test_other_names_than_those_of_a_pattern_are_allowed_without_parse(kind: Any) -> None:
    answer = '{"value":{"Other":1}}'
    _, sent, plain = schemas_of(kind)
    assert allows(found(plain), answer) and not allows(found(sent), answer)


def test_the_page_has_the_table() -> None:
    assert "\n\n" + "\n".join(table()) + "\n\n" in PAGE.read_text(), "python -m tests.gateway.parse_table prints it"
