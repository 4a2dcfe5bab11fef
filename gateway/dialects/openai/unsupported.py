"""The fields of completions and chats that Baton does not support, with the values that change nothing; refusals.py."""

from collections.abc import Mapping
from typing import Any

from gateway.dialects.openai.fields import ChatRequest, CompletionRequest, GenerationRequest
from gateway.dialects.shared.refusals import EMPTY, OFF, ON, ONE, ZERO, Table, each, refuse_misspelt, refuse_values
from gateway.words.router_marks import refuse_marked

NEUTRAL: Table = {
    **each("return_logprob return_hidden_states", OFF),
    **each("return_routed_experts return_prompt_text return_cached_tokens_details", OFF),
    **each("use_beam_search include_stop_str_in_output no_stop_trim truncate_prompt_tokens", OFF),
    **each("add_generation_prompt include_reasoning spaces_between_special_tokens", ON),
    "continue_final_message": OFF,
    "min_new_tokens": ZERO,
    **each("length_penalty typical_p", ONE),
    **each("suffix logits_processors custom_logit_processor", EMPTY),
    **each("guided_whitespace_pattern stop_regex repetition_detection", EMPTY),
    "guided_decoding_backend": ("auto", "guidance", "llguidance"),
    **each("input_ids input_embeds prompt_embeds documents audio web_search_options prediction lora_path", EMPTY),
    "modalities": (["text"],),
    "functions": EMPTY,
    "function_call": ("none", "auto"),  # auto without functions means none
    # Ignoring one would end the answer at another token, or let the model think longer than asked.
    **each("max_new_tokens max_thinking_tokens", ()),
    **each("thinking_budget_tokens reasoning_budget_tokens", (-1,)),
    # They hold other fields, which would be ignored with them. `extra_body` is an argument of SDKs, not a field.
    **each("extra_body sampling_params vllm_xargs custom_params", EMPTY),
    # A session continues another request's context. An extra key keeps caches apart, like `cache_salt`.
    **each("session_params extra_key", EMPTY),
    # A router for prefill and decode servers sends these, with the same request to two gateways: both would compute it.
    **each("bootstrap_host bootstrap_port bootstrap_room disaggregated_params", EMPTY),
    **each("kv_transfer_params ec_transfer_params", EMPTY),
}
IN_COMPLETIONS: Table = {
    **NEUTRAL,
    "tools": EMPTY,
    "tool_choice": ("none", "auto"),
    **each("thinking_token_budget thinking_budget", ()),  # no thoughts are told from the text of a completion
}
# A list of tools changes nothing if the same request forbids their use.
FORBIDDEN_BY = {"tools": "tool_choice", "functions": "function_call"}
# A router for vLLM's P2P transfer writes both addresses into the request's id, in the header or in one of these fields.
ID_FIELDS = ("request_id", "rid")
KNOWN = tuple(dict.fromkeys((*ChatRequest.model_fields, *CompletionRequest.model_fields, *NEUTRAL, "best_of")))


def refuse_unsupported(body: Mapping[str, Any], kind: type[GenerationRequest]) -> None:
    """BadRequest for the first field of a request that is not supported and would change the answer, or is misspelt."""
    table = NEUTRAL if kind is ChatRequest else IN_COMPLETIONS
    forbidden = [name for name, by in FORBIDDEN_BY.items() if body.get(by) == "none"]
    refuse_values(body, {name: neutral for name, neutral in table.items() if name not in forbidden})
    refuse_values(body, {"best_of": (1, body.get("n") or 1)})
    for name in ID_FIELDS:
        refuse_marked(name, [body.get(name)])
    refuse_misspelt(body, KNOWN, IN_COMPLETIONS)
