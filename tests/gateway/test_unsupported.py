from typing import Any

import pytest

from gateway.unsupported import NEUTRAL, refuse_unsupported
from protocol.errors import BadRequest


@pytest.mark.parametrize(
    "body",
    [
        {},
        dict.fromkeys(NEUTRAL),
        {"logprobs": False, "top_logprobs": 0, "echo": False, "suffix": ""},
        {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
        {"repetition_penalty": 1.0, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"best_of": 1, "n": 3},
        {"best_of": 1.0, "modalities": ["text"]},
        {"best_of": 3, "n": 3},
        {"use_beam_search": False, "continue_final_message": False, "add_generation_prompt": True},
    ],
)
def test_neutral_values_pass(body: dict[str, Any]) -> None:
    refuse_unsupported(body)
    assert set(body) <= set(NEUTRAL) | {"n", "best_of"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", True),
        ("logprobs", 1),
        ("logprobs", 0),
        ("top_logprobs", 3),
        ("echo", True),
        ("suffix", "x"),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"5": 1}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("guided_json", {"type": "object"}),
        ("use_beam_search", True),
        ("best_of", 2),
        ("echo", 0.0),
    ],
)
def test_others_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequest, match="not supported") as caught:
        refuse_unsupported({field: value})
    assert caught.value.param == field and caught.value.message.startswith(f"{field}: got ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"logprobs": 5}, "logprobs: got 5, which is not supported; expected null or false"),
        ({"repetition_penalty": True}, "repetition_penalty: got True, which is not supported; expected null or 1"),
        ({"best_of": 2, "n": 3}, "best_of: got 2, which is not supported; expected null or 1 or 3"),
        ({"suffix": "x"}, "suffix: got 'x', which is not supported; expected null or {} or [] or \"\""),
    ],
)
def test_the_message_says_what_would_pass(body: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        refuse_unsupported(body)
    assert caught.value.message == message
