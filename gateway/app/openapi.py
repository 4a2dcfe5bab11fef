"""What FastAPI cannot derive for /openapi.json: the schemas of bodies that routes parse themselves, and of answers."""

from copy import deepcopy
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.app.openapi_rules import Bounds, add_rules
from gateway.dialects.openai.fields import ChatRequest, CompletionRequest
from gateway.dialects.openai.shapes import ChatCompletion, Completion
from gateway.dialects.openai.tokenize_fields import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from gateway.dialects.sglang.fields import AbortRequest, GenerateRequest
from gateway.dialects.sglang.shapes import Generated
from gateway.dialects.shared.documents import REF, Error, Event

REQUESTS: tuple[type[BaseModel], ...] = (
    CompletionRequest,
    ChatRequest,
    GenerateRequest,
    AbortRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
ANSWERS: tuple[type[BaseModel], ...] = (Completion, ChatCompletion, Generated, Tokenized, Detokenized, Event, Error)
SHOWN: tuple[type[BaseModel], ...] = (*REQUESTS, *ANSWERS)


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
