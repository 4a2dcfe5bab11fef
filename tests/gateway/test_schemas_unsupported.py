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
        {"return_logprob": False, "return_hidden_states": False, "kv_transfer_params": {}, "bootstrap_room": None},
        {"use_beam_search": False, "continue_final_message": False, "add_generation_prompt": True},
        {"include_reasoning": True, "spaces_between_special_tokens": True, "return_prompt_text": False},
        {"extra_body": {}, "session_params": {}, "vllm_xargs": {}, "extra_key": ""},
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
        ("bootstrap_host", "10.0.0.1"),
        ("bootstrap_port", 8998),
        ("bootstrap_room", 0),
        ("bootstrap_room", [1, 2]),
        ("kv_transfer_params", {"do_remote_decode": True}),
        ("return_logprob", True),
        ("return_hidden_states", True),
        ("structural_tag", '{"type": "structural_tag"}'),
        ("custom_logit_processor", "{}"),
        ("thinking_token_budget", 0),
        ("stop_regex", "a+"),
        ("input_ids", [1]),
        ("max_new_tokens", 5),
        ("extra_body", {"top_k": 1}),
        ("sampling_params", {"temperature": 0}),
        ("vllm_xargs", {"a": 1}),
        ("repetition_detection", {"max_pattern_size": 3}),
        ("session_params", {"id": "a"}),
        ("extra_key", "a"),
        ("ec_transfer_params", {"a": 1}),
        ("return_routed_experts", True),
        ("return_prompt_text", True),
        ("return_cached_tokens_details", True),
        ("reasoning_effort", "low"),
        ("include_reasoning", False),
        ("spaces_between_special_tokens", False),
    ],
)
def test_others_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequest, match="not supported") as caught:
        refuse_unsupported({field: value})
    assert caught.value.param == field and caught.value.message.startswith(f"{field}: got ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"logprobs": 5}, "logprobs: got 5, which is not supported"),
        ({"repetition_penalty": True}, "repetition_penalty: got true, which is not supported"),
        ({"best_of": 2, "n": 3}, "best_of: got 2, which is not supported"),
        ({"suffix": "x"}, "suffix: got 'x', which is not supported"),
    ],
)
def test_the_message_only_says_that_the_field_is_not_supported(body: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        refuse_unsupported(body)
    assert caught.value.message == message


@pytest.mark.parametrize(("field", "choice"), [("tools", "tool_choice"), ("functions", "function_call")])
def test_tools_that_the_request_forbids_change_nothing(field: str, choice: str) -> None:
    body: dict[str, Any] = {field: [{"type": "function", "function": {"name": "add"}}]}
    refuse_unsupported(body | {choice: "none"})
    for value in (None, "auto"):
        with pytest.raises(BadRequest) as caught:
            refuse_unsupported(body | {choice: value})
        assert caught.value.param == field
