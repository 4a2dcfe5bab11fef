"""The whole answer of POST /generate, as /openapi.json tells it."""

from typing import Annotated, Any

from pydantic import BaseModel

from gateway.dialects.shared.documents import Moment
from gateway.dialects.shared.sampling_fields import told

TokenScore = tuple[float | None, int, str | None]  # [log-probability, token id, its text or null]


class Meta(BaseModel):
    """What `POST /generate` tells of one choice beside its text and tokens."""

    id: Annotated[str, told("The id of the choice.", "request-7")]
    finish_reason: Annotated[
        dict[str, Any] | None,
        told(
            "Why it ended: `type` is stop, with the stop text or token in `matched`; length, with the number of tokens "
            "in `length`; or abort. In a stream null until then.",
            {"type": "length", "length": 2},
        ),
    ]
    prompt_tokens: Annotated[int, told("Tokens of its prompt.", 4)]
    completion_tokens: Annotated[int, told("Tokens of the choice.", 2)]
    cached_tokens: Annotated[int, told("Prompt tokens whose KV workers had from earlier requests.", 0)]
    weight_version: Annotated[str, told("Always default.", "default")]
    e2e_latency: Annotated[float | None, told("At the end: seconds since the request arrived.", 0.25)] = None
    input_token_logprobs: Annotated[
        list[TokenScore],
        told("With `return_logprob` and `logprob_start_len`: of each prompt token from there. The first has null.", []),
    ] = []
    output_token_logprobs: Annotated[
        list[TokenScore],
        told("With `return_logprob`: of each token [log-probability, id, text or null].", [[-0.25, 314, None]]),
    ] = []
    input_top_logprobs: Annotated[
        list[list[TokenScore] | None],
        told("With `top_logprobs_num`, too: the likeliest tokens at each of these places. The first has null.", []),
    ] = []
    output_top_logprobs: Annotated[
        list[list[TokenScore] | None],
        told("With `top_logprobs_num`: the likeliest tokens at each place.", [[[-0.25, 314, None]]]),
    ] = []
    timeline: Annotated[list[Moment], told("Of the last choice: where the time went, with `timeline`.")] = []


class Generated(BaseModel):
    """The answer to `POST /generate`, if it is not streamed. For a list of prompts, or with `n`, a list of these."""

    text: Annotated[str, told("What continues the prompt.", ", there was a fox.")]
    output_ids: Annotated[list[int], told("The choice's tokens.", [314, 7])]
    meta_info: Annotated[Meta, told("What else is told of the choice.")]
