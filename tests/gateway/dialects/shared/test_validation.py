import pytest
from pydantic import BaseModel, ValidationError

from gateway.dialects.openai.fields import ChatRequest, CompletionRequest, parse
from gateway.dialects.sglang.fields import GenerateRequest
from gateway.dialects.shared.json_body import validated
from protocol.errors import BadRequest


@pytest.mark.parametrize("name", ["5", "k" * 80, "k" * 81, "k" * 10**6, "é" * 10**6, "K.k" * 10**6])
def test_a_name_that_a_client_has_chosen_is_shown_in_part(name: str) -> None:
    with pytest.raises(BadRequest, match="expected a number") as caught:
        parse(CompletionRequest, {"prompt": "a", "logit_bias": {name: "x"}})
    assert len(caught.value.message) < 200 and caught.value.param == "logit_bias"
    with pytest.raises(BadRequest, match="expected a string or a list of text parts") as caught:
        parse(ChatRequest, {"messages": [{"role": "user", "content": {name: 1}}]})
    assert len(caught.value.message) < 200 and caught.value.param == "messages.0.content"


@pytest.mark.parametrize(
    ("kind", "name", "item"),
    [
        (ChatRequest, "messages", "message"),
        (GenerateRequest, "text", "text"),
        (GenerateRequest, "sampling_params", "object"),
        (GenerateRequest, "rid", "item"),
    ],
)
def test_an_empty_list_is_told_what_it_lacks(kind: type[BaseModel], name: str, item: str) -> None:
    with pytest.raises(BadRequest, match=f"^{name}: is empty, expected at least one {item}$"):
        validated(kind, {"text": "a", name: []})


@pytest.mark.parametrize("kind", [CompletionRequest, GenerateRequest])
def test_one_error_is_enough_however_many_values_are_wrong(kind: type[BaseModel]) -> None:
    """A hundred thousand errors would be made while nothing else runs."""
    wrong = {str(place): "x" for place in range(500)}
    field = {"logit_bias": wrong} if kind is CompletionRequest else {"sampling_params": {"logit_bias": wrong}}
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"prompt": "a", "text": "a", **field})
    biases = [each for each in caught.value.errors() if "logit_bias" in each["loc"]]
    assert len(biases) == 1
