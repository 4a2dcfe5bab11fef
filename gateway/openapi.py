"""The part of /openapi.json that FastAPI cannot see: bodies that the gateway parses by itself.

What it does not know: what the fields mean.
"""

from typing import Any

from gateway.schemas import ChatRequest, CompletionRequest, GenerationRequest

REF = "#/components/schemas/{model}"


def body_of(kind: type[GenerationRequest]) -> dict[str, Any]:
    """`openapi_extra` for a route that takes `kind`."""
    schema = {"$ref": REF.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def add_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with the schemas that `body_of` refers to."""
    schemas: dict[str, Any] = {}
    for kind in (CompletionRequest, ChatRequest):
        schema = kind.model_json_schema(ref_template=REF)
        schemas |= schema.pop("$defs", {})
        schemas[kind.__name__] = schema
    components = document.get("components", {})
    return {**document, "components": {**components, "schemas": {**components.get("schemas", {}), **schemas}}}
