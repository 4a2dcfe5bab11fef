"""Fields of SGLang's native requests that Baton does not support, with the values that change nothing."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.native_schemas import OPENAI_NAMES, GenerateRequest
from gateway.unsupported import EMPTY, OFF, ON, ONE, ZERO, refuse_marked, refuse_misspelt, refuse_values

Table = Mapping[str, tuple[Any, ...]]


def _each(names: str, neutral: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(names.split(), neutral)


OF_BODY: Final[Table] = {
    **_each("image_data video_data audio_data input_embeds positional_embed_overrides", EMPTY),
    **_each("token_ids_logprob return_flat_raw_top_logprobs return_flat_raw_output_top_logprobs", (*EMPTY, False)),
    **_each("return_hidden_states return_routed_experts return_sampling_mask return_entropy", OFF),
    **_each("return_indexer_topk return_prompt_token_ids require_reasoning background", OFF),
    **_each("session_params session_id extra_key watermark custom_logit_processor max_thinking_tokens", EMPTY),
    # A router for prefill and decode servers sends these, with the same request to two servers: both would compute it.
    **_each("bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key disagg_prefill_dp_rank", ()),
    **_each("lora_path lora_id", EMPTY),
}
OF_SAMPLING: Final[Table] = {
    **_each("json_schema regex ebnf structural_tag stop_regex custom_params watermark", EMPTY),
    **_each("no_stop_trim", OFF),
    **_each("spaces_between_special_tokens", ON),
    **_each("beam_width", ONE),
    **_each("thinking_budget", ZERO),
}
_KNOWN: Final = (*GenerateRequest.model_fields, *OF_BODY)
_KNOWN_SAMPLING: Final = (*OPENAI_NAMES, *OF_SAMPLING, "stream_interval")


def refuse_unsupported_native(body: Mapping[str, Any]) -> None:
    """BadRequest for the first field that is not supported and would change the answer, or is misspelt."""
    refuse_values(body, OF_BODY)
    refuse_misspelt(body, _KNOWN, OF_BODY)
    rid = body.get("rid")
    refuse_marked("rid", rid if isinstance(rid, list) else [rid])

    params = body.get("sampling_params")
    for each in params if isinstance(params, list) else [params]:
        if isinstance(each, dict):
            refuse_values(each, OF_SAMPLING, "sampling_params.")
            refuse_misspelt(each, _KNOWN_SAMPLING, OF_SAMPLING)
