"""Refuses what Baton would ignore although it matters: unsupported fields, misspelt ones, marks of P/D routers.

A field that clients of other servers know and Baton does not support is refused, unless its value changes nothing. So
is an unknown field whose name is almost a known one. Any other unknown field is ignored.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from gateway.complaints import short
from gateway.near_names import near_name
from gateway.schemas import ChatRequest, CompletionRequest
from protocol.errors import BadRequest

ON, OFF, ZERO, ONE = (True,), (False,), (0,), (1,)
EMPTY: tuple[Any, ...] = ({}, [], "")
Table = Mapping[str, tuple[Any, ...]]  # of fields that are not supported: the values, besides null, that change nothing


def each(names: str, neutral: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """A part of such a table: fields that have the same values."""
    return dict.fromkeys(names.split(), neutral)


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
    **each("tools functions", EMPTY),
    **each("tool_choice function_call", ("none", "auto")),  # auto without tools means none
    # Ignoring one would end the answer at another token, or let the model think longer than asked.
    **each("max_new_tokens thinking_token_budget", ()),
    # They hold other fields, which would be ignored with them. `extra_body` is an argument of SDKs, not a field.
    **each("extra_body sampling_params vllm_xargs", EMPTY),
    # A session continues another request's context. An extra key keeps caches apart, like `cache_salt`.
    **each("session_params extra_key", EMPTY),
    # A router for prefill and decode servers sends these, with the same request to two gateways: both would compute it.
    **each("bootstrap_host bootstrap_port bootstrap_room disaggregated_params", EMPTY),
    **each("kv_transfer_params ec_transfer_params", EMPTY),
}
# A list of tools changes nothing if the same request forbids their use.
FORBIDDEN_BY = {"tools": "tool_choice", "functions": "function_call"}
# A router for vLLM's P2P transfer writes both addresses into the request's id, in the header or in one of these fields.
ID_FIELDS = ("request_id", "rid")
MARKED_ID = "___(prefill|decode)_addr_"
KNOWN = tuple(dict.fromkeys((*ChatRequest.model_fields, *CompletionRequest.model_fields, *NEUTRAL, "best_of")))
MAX_UNKNOWN = 200  # fields that are compared with known ones; nobody writes more by hand


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """BadRequest for the first field that is not supported and would change the answer."""
    forbidden = [name for name, by in FORBIDDEN_BY.items() if body.get(by) == "none"]
    refuse_values(body, {name: neutral for name, neutral in NEUTRAL.items() if name not in forbidden})
    refuse_values(body, {"best_of": (1, body.get("n") or 1)})
    for name in ID_FIELDS:
        refuse_marked(name, [body.get(name)])


def refuse_values(body: Mapping[str, Any], table: Table, inside: str = "") -> None:
    """BadRequest for the first field of `table` that has a value which changes something. `inside`: what stands before
    a field's name in the error."""
    for name, neutral in table.items():
        value = body.get(name)
        if value is not None and not any(_same(value, each) for each in neutral):
            raise BadRequest(f"{inside}{name}: got {short(value)}, which is not supported", param=inside + name)


def refuse_marked(name: str, ids: Iterable[Any]) -> None:
    """BadRequest if a request id has the marks of a router that sends the same request to two servers."""
    for each in ids:
        if isinstance(each, str) and re.search(MARKED_ID, each):
            raise BadRequest(f"{name}: got {short(each)}, which is not supported", param=name)


def refuse_misspelt(
    body: Mapping[str, Any], known: Collection[str] = KNOWN, table: Table = NEUTRAL, inside: str = ""
) -> None:
    """BadRequest for an unknown field that is almost a known one, unless its value would change nothing there (`table`)
    or the known field is there, too. `inside`: see refuse_values."""
    unknown = (name for name, value in body.items() if value is not None and name not in known)
    for name in islice(unknown, MAX_UNKNOWN):
        meant = near_name(name, known)
        if meant is None or meant in body or any(_same(body[name], each) for each in table.get(meant, ())):
            continue
        raise BadRequest(f"{inside}{short(name)[1:-1]}: unknown field, expected {meant}", param=inside + name)


def _same(value: Any, neutral: Any) -> bool:
    """Whether two values are equal. 1 equals 1.0, but not `true`."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
