from typing import Any

import pytest

from gateway.dialects.openai.fields import ChatRequest, CompletionRequest
from gateway.dialects.openai.unsupported import IN_COMPLETIONS, KNOWN, refuse_unsupported
from gateway.dialects.shared.refusals import MAX_UNKNOWN, refuse_misspelt
from gateway.words.router_marks import refuse_marked
from protocol.errors import BadRequest

P2P_ID = "___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_83ad0f"


@pytest.mark.parametrize(
    "body",
    [
        {},
        dict.fromkeys(IN_COMPLETIONS),
        {"return_logprob": False, "use_beam_search": False, "suffix": ""},
        {"length_penalty": 1, "typical_p": 1.0, "min_new_tokens": 0.0, "logits_processors": []},
        {"length_penalty": 1.0, "tools": [], "tool_choice": "none"},
        {"best_of": 1, "n": 3},
        {"best_of": 1.0, "modalities": ["text"]},
        {"best_of": 3, "n": 3},
        {"return_logprob": False, "return_hidden_states": False, "kv_transfer_params": {}, "bootstrap_room": None},
        {"use_beam_search": False, "continue_final_message": False, "add_generation_prompt": True},
        {"include_reasoning": True, "spaces_between_special_tokens": True, "return_prompt_text": False},
        {"reasoning_effort": "low", "disaggregated_params": None},
        {"request_id": "mine", "rid": ["___decode_addr"]},
        {"extra_body": {}, "session_params": {}, "vllm_xargs": {}, "extra_key": ""},
    ],
)
def test_neutral_values_pass(body: dict[str, Any]) -> None:
    for kind in (CompletionRequest, ChatRequest):
        refuse_unsupported(body, kind)
    assert set(body) <= set(IN_COMPLETIONS) | {"n", "best_of", "reasoning_effort", "request_id", "rid"}


@pytest.mark.parametrize(("field", "choice"), [("tools", "tool_choice"), ("functions", "function_call")])
def test_tools_that_the_request_forbids_change_nothing(field: str, choice: str) -> None:
    body: dict[str, Any] = {field: [{"type": "function", "function": {"name": "add"}}]}
    refuse_unsupported(body | {choice: "none"}, CompletionRequest)
    for value in (None, "auto"):
        with pytest.raises(BadRequest) as caught:
            refuse_unsupported(body | {choice: value}, CompletionRequest)
        assert caught.value.param == field


def test_a_chat_may_have_tools_but_no_functions() -> None:
    refuse_unsupported({"tools": [{}], "tool_choice": "required", "parallel_tool_calls": False}, ChatRequest)
    for name in ("functions", "function_call"):
        with pytest.raises(BadRequest, match="not supported") as caught:
            refuse_unsupported({name: [{"name": "add"}]}, ChatRequest)
        assert caught.value.param == name


def test_a_completion_has_no_budget_of_thoughts() -> None:
    for name in ("thinking_token_budget", "thinking_budget"):
        refuse_unsupported({name: 5}, ChatRequest)
        with pytest.raises(BadRequest, match=f"^{name}: got 5, which is not supported"):
            refuse_unsupported({name: 5}, CompletionRequest)


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("max_thinking_tokens", 0, None),
        ("thinking_budget_tokens", 64, -1),
        ("reasoning_budget_tokens", 0, -1),
        ("custom_params", {"thinking_budget": 5}, {}),
    ],
)
def test_a_budget_in_the_words_of_other_servers_is_refused(name: str, value: Any, neutral: Any) -> None:
    for kind in (ChatRequest, CompletionRequest):
        refuse_unsupported({name: neutral}, kind)
        with pytest.raises(BadRequest, match=f"^{name}: got .*, which is not supported"):
            refuse_unsupported({name: value}, kind)


@pytest.mark.parametrize("mark", ["___prefill_addr_10.0.1.2:21001", "x___decode_addr_[::1]:9_y", P2P_ID])
def test_a_request_id_that_a_router_has_marked(mark: str) -> None:
    refuse_marked("x-request-id", [None, 5, "", "prefill_addr_", "___prefill", "___decode_addr"])
    with pytest.raises(BadRequest, match="not supported") as caught:
        refuse_marked("x-request-id", ["mine", mark])
    assert caught.value.param == "x-request-id" and caught.value.message.startswith("x-request-id: got '")


def is_misspelt(body: dict[str, Any]) -> bool:
    try:
        refuse_misspelt(body, KNOWN, IN_COMPLETIONS)
    except BadRequest:
        return True
    return False


OF_OTHERS = """
    cache_prompt chat_id custom_params data_parallel_rank decoder_input_details details dry_base do_sample
    early_stopping end_id enable_thinking format grammar id_slot inputs keep_alive length logprob_start_len lora_id
    max_length max_prompt_tokens max_retries max_tokens_to_sample media_io_kwargs metadata min_keep min_length
    mirostat mirostat_eta mirostat_tau mm_processor_kwargs models moderation n_keep n_predict n_probs num_beams num_ctx
    num_predict num_retries options parallel_tool_calls parameters penalize_nl plugins presets prompt_cache_key
    prompt_cache_retention prompt_truncate_len provider random_seed reasoning repeat_last_n repeat_penalty
    request_id rid route safe_prompt safety_identifier samplers separate_reasoning service_tier speculative
    stop_sequences store stream_reasoning system template tfs_z thinking timeout timings_per_token top_a top_n_sigma
    top_n_tokens transforms truncate usage verbosity watermark xtc_probability
"""


@pytest.mark.parametrize("name", [*OF_OTHERS.split(), *KNOWN])
def test_fields_of_other_servers_are_not_taken_for_misspelt_ones(name: str) -> None:
    assert not is_misspelt({name: 5})


def test_a_misspelt_field_may_have_a_value_that_changes_nothing() -> None:
    assert not is_misspelt({"Tools": [], "length_penality": 1})
    assert is_misspelt({"Tools": [{}]}) and is_misspelt({"length_penality": 1.5})


def test_only_the_first_unknown_fields_are_compared() -> None:
    many = {f"field {number}": 1 for number in range(MAX_UNKNOWN)}
    assert is_misspelt({"max_tokns": 5} | many) and not is_misspelt(many | {"max_tokns": 5})
