import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gateway.dialects.openai.fields import ChatRequest, CompletionRequest, parse
from gateway.dialects.sglang.fields import GenerateRequest
from gateway.words.complaints import short
from protocol.errors import BadRequest


class Untouchable:
    """Fails whoever looks."""

    def __repr__(self) -> str:
        raise AssertionError("more was looked at than is shown")


@pytest.mark.parametrize("value", [None, True, 1.5, "a'b", [], {}, [[], {}], {"a": [1, {"b": None}]}, "x" * 78])
def test_a_short_value_is_shown_as_it_is(value: Any) -> None:
    assert short(value) == (repr(value) if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    "value", ["x" * 79, ["x" * 90, Untouchable()], [*range(40), Untouchable()], {"a" * 90: Untouchable()}, "\0" * 10**6]
)
def test_of_a_long_value_only_the_beginning_is_looked_at(value: Any) -> None:
    shown = short(value)
    assert len(shown) == 80 and shown.endswith("...")


@pytest.mark.parametrize("name", ["5", "k" * 80, "k" * 81, "k" * 10**6, "é" * 10**6, "K.k" * 10**6])
def test_a_name_that_a_client_has_chosen_is_shown_in_part(name: str) -> None:
    with pytest.raises(BadRequest, match="expected a number") as caught:
        parse(CompletionRequest, {"prompt": "a", "logit_bias": {name: "x"}})
    assert len(caught.value.message) < 200 and caught.value.param == "logit_bias"
    with pytest.raises(BadRequest, match="expected a string or a list of text parts") as caught:
        parse(ChatRequest, {"messages": [{"role": "user", "content": {name: 1}}]})
    assert len(caught.value.message) < 200 and caught.value.param == "messages.0.content"


@pytest.mark.parametrize("kind", [CompletionRequest, GenerateRequest])
def test_one_error_is_enough_however_many_values_are_wrong(kind: type[BaseModel]) -> None:
    """A hundred thousand errors would be made while nothing else runs."""
    wrong = {str(place): "x" for place in range(500)}
    field = {"logit_bias": wrong} if kind is CompletionRequest else {"sampling_params": {"logit_bias": wrong}}
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"prompt": "a", "text": "a", **field})
    biases = [each for each in caught.value.errors() if "logit_bias" in each["loc"]]
    assert len(biases) == 1
