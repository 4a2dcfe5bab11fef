"""What /openapi.json says of any route: its body, its errors, its events."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from gateway.dialects.shared.sampling_fields import told

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


class Moment(BaseModel):
    """One moment of a request."""

    name: Annotated[str, told("What happened.", "first token")]
    at_ms: Annotated[float, told("Milliseconds since the request arrived.", 12.5)]
    worker: Annotated[str, told("Where it happened.", "prefill-0")]


class Event(BaseModel):
    """One event of a stream."""

    data: Annotated[str, told("A chunk as JSON, an error as JSON, or [DONE].", "[DONE]")]


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
    wanted = {
        status: description for status, description in ERRORS.items() if status in more or status not in NOT_EVERYWHERE
    }
    return {status: {"description": description, "content": content} for status, description in wanted.items()}


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


def _reference(kind: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=kind.__name__)}
