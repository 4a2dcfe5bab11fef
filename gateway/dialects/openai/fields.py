"""The bodies of completions and chats: the fields with their types and ranges, and rules between them.

Types are strict (no bool for an int), and null means absent. unsupported.py refuses fields that Baton does not support,
validation.py says what is wrong with a value, and translate.py checks the model's limits.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, Field

from gateway.dialects.openai.conversation_fields import EXAMPLE, ConversationFields, Messages
from gateway.dialects.shared.grammar_fields import GrammarFields
from gateway.dialects.shared.json_body import validated
from gateway.dialects.shared.prompt_fields import PromptFields, check_prompt_fields
from gateway.dialects.shared.sampling_fields import (
    INT32,
    MAX_SALT_CHARS,
    MAX_STOP_CHARS,
    Ids,
    Least,
    Positive,
    PromptIds,
    SamplingFields,
    Seed,
    SeveralIds,
    Text,
    Texts,
    shown,
    told,
)
from gateway.words.complaints import short
from protocol.errors import BadRequest
from protocol.logprobs import NumTop
from protocol.messages_gateway import Priority

MAX_BAD_WORDS = 1024

DEFAULT_COMPLETION_TOKENS = 16
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class StreamOptions(BaseModel, strict=True):
    """How a stream reports usage. Needs `stream: true`."""

    include_usage: Annotated[bool | None, told("A last chunk without choices tells the usage.", True)] = None
    continuous_usage_stats: Annotated[
        bool | None, told("With `include_usage`: every chunk tells the usage so far.", False)
    ] = None


class GenerationRequest(SamplingFields, GrammarFields, PromptFields):
    """Fields that completions and chat share."""

    model: Annotated[
        str | None,
        told("One of the names in /v1/models, or what was typed for --model. Absent: the model served.", enum="names"),
    ] = None
    max_tokens: Annotated[
        Positive | None,
        told("Tokens of a choice, at most. Absent: all that the context has room for.", 8),
    ] = None
    max_completion_tokens: Annotated[
        Annotated[Positive, shown(maximum="most_tokens")] | None,
        told("The same as `max_tokens`. If both are there, this one counts.", 8),
    ] = None
    min_tokens: Annotated[
        Annotated[Least, shown(maximum="most_tokens")] | None,
        told(
            "Tokens before a choice may end: until then neither EOS nor a stop token is drawn. At most `max_tokens`.", 2
        ),
    ] = None
    seed: Annotated[
        Seed | None,
        told("The same seed gives the same answer. Absent: a random one.", 1),
    ] = None
    allowed_token_ids: Annotated[
        Annotated[Ids, shown(minItems=1)] | None, told("Only these tokens are drawn. Absent: all.", [5, 6, 7])
    ] = None
    bad_words: Annotated[
        Annotated[list[BadWord], Field(fail_fast=True, max_length=MAX_BAD_WORDS)] | None,
        told(
            "Texts that the answer does not contain, as the tokenizer writes them with a space before, and without.",
            ["dog", "once upon"],
            enum="only_empty",
        ),
    ] = None
    stream: Annotated[bool | None, told("The answer comes as server-sent events, step by step.", True)] = None
    stream_options: Annotated[
        StreamOptions | None, told("How the stream reports usage. Needs `stream: true`.", {"include_usage": True})
    ] = None
    return_token_ids: Annotated[bool | None, told("Choices also have the field `token_ids`.", True)] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, told('In `logprobs`, tokens are written as "token_id:5" instead of their text.', True)
    ] = None
    timeline: Annotated[
        bool | None,
        told("The answer also says where the time went. Absent: the header x-baton-timeline decides.", True),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None,
        told("KV of this prompt is shared only with prompts of the same salt. Give each tenant one.", "tenant-7"),
    ] = None
    priority: Annotated[
        Priority | None,
        told("A smaller number is served earlier; a level is worth a second of waiting. Absent: 0.", -5),
    ] = None
    user: Annotated[str | None, told("Accepted and not used.", "user-1")] = None
    add_special_tokens: Annotated[
        bool | None,
        told("Whether the tokenizer adds its own, such as BOS. Absent: for a prompt, but not for a chat.", False),
    ] = None


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: Annotated[
        Text | Texts | PromptIds | SeveralIds,
        told("What to continue: text, token ids, or a list of either.", "Once upon a time", [1, 2, 3]),
    ]
    max_tokens: Annotated[
        Annotated[int, Field(ge=0, lt=INT32)] | None,
        told("Tokens of a choice, at most. Absent: 16. 0, beside `echo: true`: the answer is the prompt alone.", 8),
    ] = None
    logprobs: Annotated[
        NumTop | None,
        told("Log-probabilities of the answer's tokens, and of so many of the likeliest ones at each place.", 5),
    ] = None
    top_logprobs: Annotated[
        Annotated[int, Field(ge=0, le=0)] | None,
        told("A field of chats: in a completion, `logprobs` is the number of the likeliest tokens.", 0),
    ] = None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """A list of token ids is one prompt. Any other list has one prompt in each item."""
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return cast(Sequence[str | list[int]], [self.prompt] if is_one else self.prompt)


class ChatRequest(GenerationRequest, ConversationFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[Messages, told("The conversation so far, oldest message first.", EXAMPLE)]
    logprobs: Annotated[bool | None, told("Log-probabilities of the answer's tokens.", True)] = None
    top_logprobs: Annotated[
        NumTop | None,
        told("With `logprobs`: those of so many of the likeliest tokens at each place, too. Absent: 0.", 0),
    ] = None
    thinking_token_budget: Annotated[
        Least | None,
        told(
            "Tokens of thoughts of a choice, at most: then the marker follows that ends them. Absent: no bound.",
            64,
            enum="budgets",
        ),
    ] = None
    thinking_budget: Annotated[
        Least | None,
        told("The same as `thinking_token_budget`. If both are there, that one counts.", 64, enum="budgets"),
    ] = None


R = TypeVar("R", bound=GenerationRequest)


def parse(kind: type[R], body: Any) -> R:
    """The request in a JSON body. BadRequest names the field, its value and what was expected."""
    request = validated(kind, body)
    if request.stream_options is not None and not request.stream:
        raise BadRequest(
            f"stream_options: got {short(body['stream_options'])} without stream, expected it only beside stream: true",
            param="stream_options",
        )
    check_prompt_fields(request.echo, request.prompt_logprobs, request.max_tokens, request.stream is True)
    return request
