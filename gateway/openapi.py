"""The part of /openapi.json that FastAPI cannot derive: bodies that the gateway parses itself, and all answers."""

from copy import deepcopy
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from gateway.native_schemas import AbortRequest, GenerateRequest
from gateway.openapi_rules import Bounds, add_rules
from gateway.sampling_fields import told
from gateway.schemas import ChatRequest, CompletionRequest

REF = "#/components/schemas/{model}"


class Fault(BaseModel, extra="forbid"):
    """An error: a sentence for people, and words for programs."""

    message: Annotated[
        str,
        Field(min_length=1),
        told("One sentence for a person: the field, its value, what was expected.", "n: got 0, expected at least 1"),
    ]
    type: Annotated[str, told("The kind of error. docs/http.md lists them.", "invalid_request_error")]
    param: Annotated[str | None, told("The field at fault, if one is.", "n")]
    code: Annotated[str, told("A stable word for programs.", "bad_request")]


class Error(BaseModel, extra="forbid"):
    """The body of every error."""

    error: Annotated[
        Fault,
        told(
            "What went wrong.",
            {
                "message": "n: got 0, expected at least 1",
                "type": "invalid_request_error",
                "param": "n",
                "code": "bad_request",
            },
        ),
    ]


USAGE = {
    "prompt_tokens": 4,
    "completion_tokens": 8,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 0},
}
MOMENT = {"name": "first token", "at_ms": 12.5, "worker": "prefill-0"}


class CachedTokens(BaseModel):
    """How much of the prompt was not computed."""

    cached_tokens: Annotated[int, told("Prompt tokens whose KV workers had from earlier requests.", 0)]


class Usage(BaseModel):
    """Tokens of a whole client request. A prompt counts once, whatever `n` is."""

    prompt_tokens: Annotated[int, told("Tokens of all prompts.", 4)]
    completion_tokens: Annotated[int, told("Tokens of all choices.", 8)]
    total_tokens: Annotated[int, told("The sum of both.", 12)]
    prompt_tokens_details: Annotated[CachedTokens, told("Details of the prompt's tokens.", {"cached_tokens": 0})]


class Moment(BaseModel):
    """One moment of a request."""

    name: Annotated[str, told("What happened.", "first token")]
    at_ms: Annotated[float, told("Milliseconds since the request arrived.", 12.5)]
    worker: Annotated[str, told("Where it happened.", "prefill-0")]


class TextLogprobs(BaseModel):
    """Log-probabilities of a completion's tokens. The lists have an item for each token; -9999 is minus infinity."""

    tokens: Annotated[list[str], told("Their texts.", [" a", " fox"])]
    token_logprobs: Annotated[
        list[float | None],
        told("The natural logarithms of their probabilities; null for the first token of an echo.", [-0.25, -1.5]),
    ]
    top_logprobs: Annotated[
        list[dict[str, float] | None],
        told("The likeliest tokens at their places, and they themselves.", [{" a": -0.25}]),
    ]
    text_offset: Annotated[list[int], told("Characters of the text before each of them.", [0, 2])]


class PromptToken(BaseModel):
    """A token at a place of the prompt, as vLLM writes it."""

    logprob: Annotated[float, told("The natural logarithm of its probability; -9999 is minus infinity.", -0.25)]
    rank: Annotated[int, told("1: no token is likelier.", 1)]
    decoded_token: Annotated[str | None, told("Its text.", " fox")]


PromptPlaces = list[dict[str, PromptToken] | None]
PLACES = [None, {"314": {"logprob": -0.25, "rank": 1, "decoded_token": " fox"}}]


class TokenProbability(BaseModel):
    """One token at a place of a chat's answer."""

    token: Annotated[str, told("Its text.", " fox")]
    logprob: Annotated[float, told("The natural logarithm of its probability; -9999 is minus infinity.", -0.25)]
    bytes: Annotated[list[int] | None, told("Its bytes. A token may be a part of a character.", [32, 102, 111, 120])]


class ScoredPlace(TokenProbability):
    """One token of a chat's answer."""

    top_logprobs: Annotated[list[TokenProbability], told("The likeliest tokens at its place, likeliest first.", [])]


class ChatLogprobs(BaseModel):
    """Log-probabilities of the tokens of a chat's answer."""

    content: Annotated[list[ScoredPlace], told("One item for each token.", [])]
    refusal: Annotated[None, told("Always null.", None)]


class Choice(BaseModel):
    """What completions and chat have in common in a choice."""

    index: Annotated[int, told("The number of the choice. Choice c of prompt p has p * n + c.", 0)]
    finish_reason: Annotated[
        Literal["stop", "length", "abort"],
        told(
            "stop: EOS, a stop token or a stop text. length: `max_tokens`, or the context is full. "
            "abort: another request has ended it.",
            "stop",
        ),
    ]
    token_ids: Annotated[list[int], told("The choice's tokens, with `return_token_ids`.", [314, 7])] = []


class TextChoice(Choice):
    """One choice of a completion."""

    text: Annotated[str, told("What continues the prompt.", ", there was a fox.")]
    logprobs: Annotated[TextLogprobs | None, told("Those of the tokens, with `logprobs`; else null.", None)]
    prompt_logprobs: Annotated[
        PromptPlaces, told("With `prompt_logprobs`: null for the first token, and tokens by their ids.", PLACES)
    ] = []


class AnswerMessage(BaseModel):
    """The message of one choice of a chat."""

    role: Annotated[Literal["assistant"], told("Always assistant.", "assistant")]
    content: Annotated[str, told("What the model says.", "Once there was a fox.")]
    refusal: Annotated[None, told("Always null.", None)]
    annotations: Annotated[list[Any], Field(max_length=0), told("Always empty.", [])]


class ChatChoice(Choice):
    """One choice of a chat."""

    logprobs: Annotated[ChatLogprobs | None, told("Those of the tokens, with `logprobs`; else null.", None)]

    message: Annotated[
        AnswerMessage,
        told(
            "What the model says.",
            {"role": "assistant", "content": "Once there was a fox.", "refusal": None, "annotations": []},
        ),
    ]


class Answer(BaseModel):
    """What completions and chat have in common in an answer that is not streamed."""

    id: Annotated[str, told("The id of this answer.", "cmpl-83ad0f")]
    created: Annotated[int, told("Seconds since 1970.", 1767225600)]
    model: Annotated[str, told("The first name of the model.", "story")]
    usage: Annotated[Usage, told("Tokens of the whole request.", USAGE)]
    timeline: Annotated[list[Moment], told("Where the time went, with `timeline`.", [MOMENT])] = []


class Completion(Answer):
    """The answer to `POST /v1/completions`, if it is not streamed."""

    object: Annotated[Literal["text_completion"], told("Always text_completion.", "text_completion")]
    choices: Annotated[
        list[TextChoice],
        told("The choices, by index.", [{"index": 0, "text": " a fox.", "logprobs": None, "finish_reason": "stop"}]),
    ]


class ChatCompletion(Answer):
    """The answer to `POST /v1/chat/completions`, if it is not streamed."""

    object: Annotated[Literal["chat.completion"], told("Always chat.completion.", "chat.completion")]
    prompt_logprobs: Annotated[
        PromptPlaces, told("With `prompt_logprobs`: null for the first token, and tokens by their ids.", PLACES)
    ] = []
    choices: Annotated[
        list[ChatChoice],
        told(
            "The choices, by index.",
            [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "A fox.", "refusal": None, "annotations": []},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
        ),
    ]


TokenScore = tuple[float, int, str | None]  # [log-probability, token id, its text or null]


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
        list[TokenScore], Field(max_length=0), told("With `return_logprob`: always empty.", [])
    ] = []
    output_token_logprobs: Annotated[
        list[TokenScore],
        told("With `return_logprob`: of each token [log-probability, id, text or null].", [[-0.25, 314, None]]),
    ] = []
    input_top_logprobs: Annotated[
        list[list[TokenScore]], Field(max_length=0), told("With `top_logprobs_num`: always empty.", [])
    ] = []
    output_top_logprobs: Annotated[
        list[list[TokenScore]],
        told("With `top_logprobs_num`: the likeliest tokens at each place.", [[[-0.25, 314, None]]]),
    ] = []
    timeline: Annotated[list[Moment], told("Of the last choice: where the time went, with `timeline`.", [MOMENT])] = []


META = {
    "id": "request-7",
    "finish_reason": {"type": "length", "length": 2},
    "prompt_tokens": 4,
    "completion_tokens": 2,
    "cached_tokens": 0,
    "weight_version": "default",
    "e2e_latency": 0.25,
}


class Generated(BaseModel):
    """The answer to `POST /generate`, if it is not streamed. For a list of prompts, or with `n`, a list of these."""

    text: Annotated[str, told("What continues the prompt.", ", there was a fox.")]
    output_ids: Annotated[list[int], told("The choice's tokens.", [314, 7])]
    meta_info: Annotated[Meta, told("What else is told of the choice.", META)]


class Event(BaseModel):
    """One event of a stream."""

    data: Annotated[str, told("A chunk as JSON, an error as JSON, or [DONE].", "[DONE]")]


REQUESTS: tuple[type[BaseModel], ...] = (CompletionRequest, ChatRequest, GenerateRequest, AbortRequest)
SHOWN: tuple[type[BaseModel], ...] = (*REQUESTS, Completion, ChatCompletion, Generated, Event, Error)
EVERYWHERE = {  # of every route: HTTP itself failed, or there are too many connections
    400: "the request makes no sense; `param` names the field",
    401: "with --api-key-file: the key is missing or wrong",
    408: "headers or body did not arrive in time",
    413: "the body is too long",
    431: "the headers are too long or too many",
    500: "a fault of the gateway",
    503: "no worker can take the request, or too many connections; Retry-After says when to try again",
}
OF_GENERATION = {
    404: "this model is not served here",
    415: "the body is compressed, or is not JSON by its content type",
    429: "too many requests are in flight; Retry-After says when to try again",
}
NOT_FOUND = {404: OF_GENERATION[404]}
NOT_JSON = {status: OF_GENERATION[status] for status in (415, 429)}
Responses = dict[int | str, dict[str, Any]]
TIMELINE = {
    "name": "x-baton-timeline",
    "in": "header",
    "description": "The same as the field `timeline`, which decides if it is there.",
    "schema": {"type": "string", "enum": ["true", "false"]},
    "example": "true",
}


def body_of(kind: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` for a route that takes `kind`. `example`: a body, to which the model's name is added if `kind`
    has one."""
    content = {"application/json": {"schema": _reference(kind), "example": example}}
    parameters = [TIMELINE] if "timeline" in kind.model_fields else []
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


def errors(more: dict[int, str] | None = None) -> Responses:
    """The errors of a route: the common ones and `more`."""
    wanted = sorted((EVERYWHERE | (more or {})).items())
    return {status: {"description": description, **_content(Error)} for status, description in wanted}


def generation_responses(whole: type[BaseModel], *, is_list: bool = False) -> Responses:
    """The answers of a route that generates. `is_list`: an answer may also be a list of `whole`."""
    schema: dict[str, Any] = _reference(whole)
    if is_list:
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    content = {"application/json": {"schema": schema}, "text/event-stream": {"schema": _reference(Event)}}
    answer = {"description": "the whole answer, or with `stream` an event for each step", "content": content}
    return {200: answer, **errors(OF_GENERATION)}


def text_response() -> Responses:
    """The answers of routes that send plain text."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {200: {"description": "plain text", "content": content}, **errors()}


def add_schemas(document: dict[str, Any], bounds: Bounds) -> dict[str, Any]:
    """The document with the schemas that the functions above refer to, as strict as the gateway is now. Drops FastAPI's
    own error 422, which is never sent."""
    _, schemas = models_json_schema([(kind, "validation") for kind in SHOWN], ref_template=REF)
    add_rules(schemas["$defs"], bounds)

    document = deepcopy(document)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            for content in operation.get("requestBody", {}).get("content", {}).values():
                kind = schemas["$defs"][content["schema"]["$ref"].rpartition("/")[2]]
                if "model" in kind["properties"]:
                    content["example"] = {"model": bounds.names[0], **content["example"]}
    return {**document, "components": {"schemas": schemas["$defs"]}}


def _content(kind: type[BaseModel]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": _reference(kind)}}}


def _reference(kind: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=kind.__name__)}
