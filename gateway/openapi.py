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

    error: Annotated[Fault, told("What went wrong.")]


class CachedTokens(BaseModel):
    """How much of the prompt was not computed."""

    cached_tokens: Annotated[int, told("Prompt tokens whose KV workers had from earlier requests.", 0)]


class Usage(BaseModel):
    """Tokens of a whole client request. A prompt counts once, whatever `n` is."""

    prompt_tokens: Annotated[int, told("Tokens of all prompts.", 4)]
    completion_tokens: Annotated[int, told("Tokens of all choices.", 8)]
    total_tokens: Annotated[int, told("The sum of both.", 12)]
    prompt_tokens_details: Annotated[CachedTokens, told("Details of the prompt's tokens.")]


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


PromptPlaces = Annotated[
    list[dict[str, PromptToken] | None],
    told(
        "With `prompt_logprobs`: null for the first token, and tokens by their ids.",
        [None, {"314": {"logprob": -0.25, "rank": 1, "decoded_token": " fox"}}],
    ),
]


class TokenProbability(BaseModel):
    """One token at a place of a chat's answer."""

    token: Annotated[str, told("Its text.", " fox")]
    logprob: Annotated[float, told("The natural logarithm of its probability; -9999 is minus infinity.", -0.25)]
    bytes: Annotated[list[int] | None, told("Its bytes. A token may be a part of a character.", [32, 102, 111, 120])]


class ScoredPlace(TokenProbability):
    """One token of a chat's answer."""

    top_logprobs: Annotated[list[TokenProbability], told("The likeliest tokens at its place, likeliest first.")]


class ChatLogprobs(BaseModel):
    """Log-probabilities of the tokens of a chat's answer."""

    content: Annotated[list[ScoredPlace], told("One item for each token.")]
    refusal: Annotated[None, told("Always null.")]


class Choice(BaseModel):
    """What completions and chat have in common in a choice."""

    index: Annotated[int, told("The number of the choice. Choice c of prompt p has p * n + c.", 0)]
    finish_reason: Annotated[
        Literal["stop", "length", "abort"],
        told(
            "stop: EOS, a stop token or a stop text. length: `max_tokens`, or the context is full. "
            "abort: another request has ended it."
        ),
    ]
    token_ids: Annotated[list[int], told("The choice's tokens, with `return_token_ids`.", [314, 7])] = []


class TextChoice(Choice):
    """One choice of a completion."""

    text: Annotated[str, told("What continues the prompt.", ", there was a fox.")]
    logprobs: Annotated[TextLogprobs | None, told("Those of the tokens, with `logprobs`; else null.", None)]
    prompt_logprobs: PromptPlaces = []


class AnswerMessage(BaseModel):
    """The message of one choice of a chat."""

    role: Annotated[Literal["assistant"], told("Always assistant.")]
    content: Annotated[str, told("What the model says.", "Once there was a fox.")]
    refusal: Annotated[None, told("Always null.")]
    annotations: Annotated[list[Any], Field(max_length=0), told("Always empty.", [])]


class ChatChoice(Choice):
    """One choice of a chat."""

    logprobs: Annotated[ChatLogprobs | None, told("Those of the tokens, with `logprobs`; else null.", None)]
    message: Annotated[AnswerMessage, told("What the model says.")]


class Answer(BaseModel):
    """What completions and chat have in common in an answer that is not streamed."""

    id: Annotated[str, told("The id of this answer.", "cmpl-83ad0f")]
    created: Annotated[int, told("Seconds since 1970.", 1767225600)]
    model: Annotated[str, told("The first name of the model.", "story")]
    usage: Annotated[Usage, told("Tokens of the whole request.")]
    timeline: Annotated[list[Moment], told("Where the time went, with `timeline`.")] = []


class Completion(Answer):
    """The answer to `POST /v1/completions`, if it is not streamed."""

    object: Annotated[Literal["text_completion"], told("Always text_completion.")]
    choices: Annotated[list[TextChoice], told("The choices, by index.")]


class ChatCompletion(Answer):
    """The answer to `POST /v1/chat/completions`, if it is not streamed."""

    object: Annotated[Literal["chat.completion"], told("Always chat.completion.")]
    prompt_logprobs: PromptPlaces = []
    choices: Annotated[list[ChatChoice], told("The choices, by index.")]


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
    timeline: Annotated[list[Moment], told("Of the last choice: where the time went, with `timeline`.")] = []


class Generated(BaseModel):
    """The answer to `POST /generate`, if it is not streamed. For a list of prompts, or with `n`, a list of these."""

    text: Annotated[str, told("What continues the prompt.", ", there was a fox.")]
    output_ids: Annotated[list[int], told("The choice's tokens.", [314, 7])]
    meta_info: Annotated[Meta, told("What else is told of the choice.")]


class Event(BaseModel):
    """One event of a stream."""

    data: Annotated[str, told("A chunk as JSON, an error as JSON, or [DONE].", "[DONE]")]


REQUESTS: tuple[type[BaseModel], ...] = (CompletionRequest, ChatRequest, GenerateRequest, AbortRequest)
SHOWN: tuple[type[BaseModel], ...] = (*REQUESTS, Completion, ChatCompletion, Generated, Event, Error)
ERRORS = {
    400: "the request makes no sense; `param` names the field",
    401: "with --api-key-file: the key is missing or wrong",
    404: "this model is not served here",
    408: "headers or body did not arrive in time",
    413: "the body is too long",
    415: "the body is compressed, or is not JSON by its content type",
    429: "too many requests are in flight; Retry-After says when to try again",
    431: "the headers are too long or too many",
    500: "a fault of the gateway",
    503: "no worker can take the request, or too many connections; Retry-After says when to try again",
}
NOT_EVERYWHERE = {404, 415, 429}  # the others can follow on any route
Responses = dict[int | str, dict[str, Any]]
WHY = "The same as the field `timeline`, which decides if it is there."
TIMELINE = {
    "name": "x-baton-timeline",
    "in": "header",
    "description": WHY,
    "schema": {"type": "string", "enum": ["true", "false"], "description": WHY, "examples": ["true"]},
}


def body_of(kind: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` for a route that takes `kind`. `example`: a body, to which the model's name is added if `kind`
    has one."""
    content = {"application/json": {"schema": _reference(kind), "example": example}}
    parameters = [TIMELINE] if "timeline" in kind.model_fields else []
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


def errors(*more: int) -> Responses:
    """The errors of a route: those of every route and `more`."""
    content = {"application/json": {"schema": _reference(Error)}}
    wanted = {status: why for status, why in ERRORS.items() if status in more or status not in NOT_EVERYWHERE}
    return {status: {"description": why, "content": content} for status, why in wanted.items()}


def generation_responses(whole: type[BaseModel], *, is_list: bool = False) -> Responses:
    """The answers of a route that generates. `is_list`: an answer may also be a list of `whole`."""
    schema: dict[str, Any] = _reference(whole)
    if is_list:
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    content = {"application/json": {"schema": schema}, "text/event-stream": {"schema": _reference(Event)}}
    answer = {"description": "the whole answer, or with `stream` an event for each step", "content": content}
    return {200: answer, **errors(*NOT_EVERYWHERE)}


def text_response() -> Responses:
    """The answers of routes that send plain text."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {200: {"description": "plain text", "content": content}, **errors()}


def add_schemas(document: dict[str, Any], bounds: Bounds) -> dict[str, Any]:
    """The document with the schemas that the functions above refer to, as strict as the gateway is now. Drops FastAPI's
    own error 422, which is never sent."""
    _, schemas = models_json_schema([(kind, "validation") for kind in SHOWN], ref_template=REF)
    add_rules(schemas["$defs"], bounds)
    for schema in schemas["$defs"].values():
        for field in schema["properties"].values():
            field["examples"] = field["examples"] or [_example(field, schemas["$defs"])]

    document = deepcopy(document)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            for content in operation.get("requestBody", {}).get("content", {}).values():
                kind = schemas["$defs"][content["schema"]["$ref"].rpartition("/")[2]]
                if "model" in kind["properties"]:
                    content["example"] = {"model": bounds.names[0], **content["example"]}
    return {**document, "components": {"schemas": schemas["$defs"]}}


def _example(node: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """An example of what fits a schema: that of the field, or one made of the examples of its parts."""
    if node.get("examples"):
        return node["examples"][0]
    if "$ref" in node:
        schema = schemas[node["$ref"].rpartition("/")[2]]
        return {name: _example(schema["properties"][name], schemas) for name in schema.get("required", ())}
    if "items" in node:
        return [_example(node["items"], schemas)]
    return node.get("const", node.get("enum", [None])[0])


def _reference(kind: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=kind.__name__)}
