"""Fields that clients know and Baton does not support yet: refused by name, unless their value changes nothing.

What it does not know: any other field.
"""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.errors import BadRequest

Neutral = Callable[[Any], bool]


def _equals(*values: Any) -> Neutral:
    def check(value: Any) -> bool:
        return any(type(value) in (type(each), float) and value == each for each in values)

    return check


def _empty(value: Any) -> bool:
    return value in ({}, [], "")


def _off(value: Any) -> bool:
    return value is False


def _choice_of_tool(value: Any) -> bool:
    return value in ("none", "auto")  # auto without tools means none


def _text_format(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("type") == "text")


def _text_modality(value: Any) -> bool:
    return bool(value == ["text"])


NEUTRAL: Mapping[str, Neutral] = {
    "logprobs": _off,
    "top_logprobs": _equals(0),
    "prompt_logprobs": _off,
    "echo": _off,
    "suffix": _empty,
    "frequency_penalty": _equals(0),
    "presence_penalty": _equals(0),
    "repetition_penalty": _equals(1),
    "length_penalty": _equals(1),
    "logit_bias": _empty,
    "tools": _empty,
    "tool_choice": _choice_of_tool,
    "functions": _empty,
    "function_call": _choice_of_tool,
    "response_format": _text_format,
    "structured_outputs": _empty,
    "guided_json": _empty,
    "guided_regex": _empty,
    "guided_choice": _empty,
    "guided_grammar": _empty,
    "guided_decoding_backend": _empty,
    "json_schema": _empty,
    "regex": _empty,
    "ebnf": _empty,
    "use_beam_search": _off,
    "bad_words": _empty,
    "allowed_token_ids": _empty,
    "logits_processors": _empty,
    "typical_p": _equals(1),
    "min_new_tokens": _equals(0),
    "include_stop_str_in_output": _off,
    "no_stop_trim": _off,
    "truncate_prompt_tokens": _off,
    "prompt_embeds": _empty,
    "add_generation_prompt": lambda value: value is True,
    "continue_final_message": _off,
    "documents": _empty,
    "audio": _empty,
    "modalities": _text_modality,
    "web_search_options": _empty,
    "prediction": _empty,
    "lora_path": _empty,
}


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """BadRequest for the first field that would change the answer and is not supported."""
    for name, is_neutral in NEUTRAL.items():
        value = body.get(name)
        if value is not None and not is_neutral(value):
            raise BadRequest(f"{name}: got {_short(value)}, which is not supported", param=name)
    best_of = body.get("best_of")
    num_choices = body.get("n") or 1
    if best_of is not None and not _equals(1)(best_of) and best_of != num_choices:
        raise BadRequest(
            f"best_of: got {_short(best_of)}, which is not supported beside n={num_choices}", param="best_of"
        )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
