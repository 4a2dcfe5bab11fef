"""The part of /openapi.json that FastAPI cannot derive: bodies that the gateway parses itself, and all answers."""

from typing import Any

from gateway.schemas import ChatRequest, CompletionRequest, GenerationRequest

REF = "#/components/schemas/{model}"
NULLABLE_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
ERROR = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string"},
                "param": NULLABLE_TEXT,
                "code": {"type": "string"},
            },
        }
    },
}
USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
}
CHOICE = {
    "type": "object",
    "required": ["index", "finish_reason"],
    "properties": {"index": {"type": "integer"}, "finish_reason": NULLABLE_TEXT},
}
ANSWER = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"type": "string"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "items": {"$ref": REF.format(model="Choice")}},
        "usage": {"$ref": REF.format(model="Usage")},
    },
}
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}  # one event of a stream
SCHEMAS = {"Error": ERROR, "Usage": USAGE, "Choice": CHOICE, "Answer": ANSWER}
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
    schema = {"$ref": REF.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def errors(more: dict[int, str] | None = None) -> Responses:
    """The errors of a route: the common ones and `more`."""
    content = {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}
    wanted = sorted((EVERYWHERE | (more or {})).items())
    return {status: {"description": description, "content": content} for status, description in wanted}


def generation_responses() -> Responses:
    """The answers of completions and chat completions."""
    content = {
        "application/json": {"schema": {"$ref": REF.format(model="Answer")}},
        "text/event-stream": {"schema": EVENT},
    }
    answer = {"description": "the whole answer, or with `stream` an event for each token", "content": content}
    return {200: answer, **errors(OF_GENERATION)}


def text_response() -> Responses:
    """The answers of routes that send plain text."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {200: {"description": "plain text", "content": content}, **errors()}


def add_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """Adds the schemas that the functions above refer to. Drops FastAPI's own error 422, which is never sent."""
    schemas: dict[str, Any] = dict(SCHEMAS)
    for kind in (CompletionRequest, ChatRequest):
        schema = kind.model_json_schema(ref_template=REF)
        schemas |= schema.pop("$defs", {})
        schemas[kind.__name__] = schema
    paths = {
        path: {method: _without_422(operation) for method, operation in operations.items()}
        for path, operations in document["paths"].items()
    }
    return {**document, "paths": paths, "components": {"schemas": schemas}}


def _without_422(operation: dict[str, Any]) -> dict[str, Any]:
    responses = {status: response for status, response in operation["responses"].items() if status != "422"}
    return {**operation, "responses": responses}
