"""Refuses fields that clients know and Baton does not support, unless their value changes nothing."""

from collections.abc import Mapping
from typing import Any

from gateway.schemas import short
from protocol.errors import BadRequest

EMPTY: tuple[Any, ...] = ({}, [], "")
OFF = (False,)

# The values, besides null, that change nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "logprobs": OFF,
    "top_logprobs": (0,),
    "prompt_logprobs": OFF,
    "echo": OFF,
    "suffix": EMPTY,
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": EMPTY,
    "tools": EMPTY,
    "tool_choice": ("none", "auto"),  # auto without tools means none
    "functions": EMPTY,
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": EMPTY,
    "guided_json": EMPTY,
    "guided_regex": EMPTY,
    "guided_choice": EMPTY,
    "guided_grammar": EMPTY,
    "guided_decoding_backend": EMPTY,
    "json_schema": EMPTY,
    "regex": EMPTY,
    "ebnf": EMPTY,
    "use_beam_search": OFF,
    "bad_words": EMPTY,
    "allowed_token_ids": EMPTY,
    "logits_processors": EMPTY,
    "typical_p": (1,),
    "min_new_tokens": (0,),
    "max_new_tokens": (),  # ignoring it would end the answer at another token
    "include_stop_str_in_output": OFF,
    "no_stop_trim": OFF,
    "truncate_prompt_tokens": OFF,
    "prompt_embeds": EMPTY,
    "add_generation_prompt": (True,),
    "continue_final_message": OFF,
    "documents": EMPTY,
    "audio": EMPTY,
    "modalities": (["text"],),
    "web_search_options": EMPTY,
    "prediction": EMPTY,
    "lora_path": EMPTY,
    "input_ids": EMPTY,
    "input_embeds": EMPTY,
    "stop_regex": EMPTY,
    "return_logprob": OFF,
    "return_hidden_states": OFF,
    "structural_tag": EMPTY,
    "custom_logit_processor": EMPTY,
    "thinking_token_budget": (),
    # A router for prefill and decode servers sends these, with the same request to two gateways: both would compute it.
    "bootstrap_host": EMPTY,
    "bootstrap_port": EMPTY,
    "bootstrap_room": EMPTY,
    "kv_transfer_params": EMPTY,
}
# A list of tools changes nothing if the same request forbids their use.
FORBIDDEN_BY = {"tools": "tool_choice", "functions": "function_call"}


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """BadRequest for the first field that is not supported and would change the answer."""
    for name, neutral in NEUTRAL.items():
        is_forbidden = name in FORBIDDEN_BY and body.get(FORBIDDEN_BY[name]) == "none"
        if not is_forbidden:
            _refuse_unless(body, name, neutral)
    _refuse_unless(body, "best_of", (1, body.get("n") or 1))


def _refuse_unless(body: Mapping[str, Any], name: str, neutral: tuple[Any, ...]) -> None:
    value = body.get(name)
    if value is not None and not any(_same(value, each) for each in neutral):
        raise BadRequest(f"{name}: got {short(value)}, which is not supported", param=name)


def _same(value: Any, neutral: Any) -> bool:
    """Whether two values are equal. 1 equals 1.0, but not `true`."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
