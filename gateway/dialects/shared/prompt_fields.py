"""Fields of a body that ask for the prompt itself: its text before the answer, and log-probabilities of its tokens."""

from typing import Annotated

from pydantic import BaseModel

from gateway.dialects.shared.sampling_fields import told
from protocol.errors import BadRequest
from protocol.logprobs import NumTop


class PromptFields(BaseModel, strict=True):
    """OpenAI's `echo`, and vLLM's `prompt_logprobs`."""

    echo: Annotated[
        bool | None,
        told(
            "The answer begins with the prompt's text, and with `logprobs` with its tokens. In a chat: with the last "
            "message, if that is the assistant's.",
            False,
        ),
    ] = None
    prompt_logprobs: Annotated[
        NumTop | None,
        told("Log-probabilities of the prompt's tokens, and of so many of the likeliest ones. Not in a stream.", 0),
    ] = None


def check_prompt_fields(echo: bool | None, prompt_logprobs: int | None, max_tokens: int | None, stream: bool) -> None:
    """BadRequest if these fields of one body do not fit together."""
    if prompt_logprobs is not None and stream:
        raise BadRequest(
            f"prompt_logprobs: got {prompt_logprobs} with stream: true, expected it only in a request without stream",
            param="prompt_logprobs",
        )
    if max_tokens == 0 and not echo:
        raise BadRequest(
            "max_tokens: got 0 without echo, expected at least 1, or 0 beside echo: true", param="max_tokens"
        )
