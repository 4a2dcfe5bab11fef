"""The part of /openapi.json that FastAPI cannot derive: bodies that the gateway parses itself, and all answers."""

from typing import Annotated, Any

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from gateway.schemas import ChatRequest, CompletionRequest, GenerationRequest

REF = "#/components/schemas/{model}"


class Fault(BaseModel, extra="forbid"):
    """An error."""

    message: Annotated[str, Field(min_length=1)]
    type: str
    param: str | None
    code: str


class Error(BaseModel, extra="forbid"):
    """The body of every error."""

    error: Fault


class Usage(BaseModel):
    """Tokens of a whole client request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice(BaseModel):
    """One choice. Its text is in `text`; in a chat it is in `message`."""

    index: int
    finish_reason: str | None


class Answer(BaseModel):
    """The body of an answer that is not streamed."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Event(BaseModel):
    """One event of a stream."""

    data: str


SHOWN: tuple[type[BaseModel], ...] = (CompletionRequest, ChatRequest, Answer, Event, Error)
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
Responses = dict[int | str, dict[str, Any]]


def body_of(kind: type[GenerationRequest]) -> dict[str, Any]:
    """`openapi_extra` for a route that takes `kind`."""
    return {"requestBody": {"required": True, **_content(kind)}}


def errors(more: dict[int, str] | None = None) -> Responses:
    """The errors of a route: the common ones and `more`."""
    wanted = sorted((EVERYWHERE | (more or {})).items())
    return {status: {"description": description, **_content(Error)} for status, description in wanted}


def generation_responses() -> Responses:
    """The answers of completions and chat completions."""
    content = {**_content(Answer)["content"], "text/event-stream": {"schema": _reference(Event)}}
    answer = {"description": "the whole answer, or with `stream` an event for each step", "content": content}
    return {200: answer, **errors(OF_GENERATION)}


def text_response() -> Responses:
    """The answers of routes that send plain text."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {200: {"description": "plain text", "content": content}, **errors()}


def add_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """Adds the schemas that the functions above refer to. Drops FastAPI's own error 422, which is never sent."""
    _, schemas = models_json_schema([(kind, "validation") for kind in SHOWN], ref_template=REF)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    return {**document, "components": {"schemas": schemas["$defs"]}}


def _content(kind: type[BaseModel]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": _reference(kind)}}}


def _reference(kind: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=kind.__name__)}
