"""Refuses what a native request has that Baton would ignore although it matters; see refusals.py."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.dialects.sglang.fields import INSIDE, RENAMED, GenerateRequest, NativeSampling
from gateway.dialects.shared.refusals import EMPTY, OFF, ON, ONE, ZERO, Table, each, refuse_misspelt, refuse_values
from gateway.words.complaints import short
from gateway.words.router_marks import refuse_marked
from protocol.errors import BadRequest

# The values, besides null, that change nothing.
OF_BODY: Final[Table] = {
    **each("image_data video_data audio_data input_embeds positional_embed_overrides mm_processor_kwargs", EMPTY),
    **each("token_ids_logprob custom_logit_processor multi_item_delimiter_indices token_indices_to_pool", EMPTY),
    **each("return_hidden_states return_routed_experts return_sampling_mask return_entropy return_bytes", OFF),
    **each("return_indexer_topk return_prompt_token_ids require_reasoning background", OFF),
    **each("return_flat_raw_top_logprobs return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64", OFF),
    "max_thinking_tokens": (),
    # A session continues another request's context. An extra key keeps caches apart, like `cache_salt`.
    **each("session_params extra_key watermark lora_path lora_id", EMPTY),
    # A router for prefill and decode servers sends these, with the same request to two servers: both would compute it.
    **each("bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key disagg_prefill_dp_rank", ()),
}
OF_SAMPLING: Final[Table] = {
    **each("stop_regex custom_params watermark", EMPTY),
    **each("no_stop_trim", OFF),
    **each("spaces_between_special_tokens", ON),
    **each("beam_width", ONE),
    **each("thinking_budget", ZERO),
}
_SAMPLING: Final = tuple(NativeSampling.model_fields)
_KNOWN: Final = (*GenerateRequest.model_fields, *_SAMPLING, *OF_BODY)
_KNOWN_SAMPLING: Final = (*_SAMPLING, *OF_SAMPLING)


def refuse_unsupported_native(body: Mapping[str, Any]) -> None:
    """BadRequest for the first field that is not supported and would change the answer, is misspelt, or belongs into
    `sampling_params`."""
    refuse_values(body, OF_BODY)
    refuse_misspelt(body, _KNOWN, OF_BODY)
    rid = body.get("rid")
    refuse_marked("rid", rid if isinstance(rid, list) else [rid])
    for name in _SAMPLING:
        if body.get(name) is not None:
            where = INSIDE + name
            raise BadRequest(f"{where}: got {short(body[name])}, expected it in sampling_params", param=where)

    params = body.get("sampling_params")
    for of_prompt in params if isinstance(params, list) else [params]:
        if isinstance(of_prompt, dict):
            _refuse_openai_names(of_prompt)
            refuse_values(of_prompt, OF_SAMPLING, INSIDE)
            refuse_misspelt(of_prompt, _KNOWN_SAMPLING, OF_SAMPLING, INSIDE)


def _refuse_openai_names(params: Mapping[str, Any]) -> None:
    """BadRequest for a field that has another name here. Ignored, it would give a longer answer, or another."""
    for name, openai_name in RENAMED.items():
        value = params.get(openai_name)
        if value is not None:
            raise BadRequest(f"{INSIDE}{name}: got {short(value)}, expected it as {name}", param=INSIDE + openai_name)
