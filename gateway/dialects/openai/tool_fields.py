"""Fields of a chat that tell of tools: those that may be called, the choice among them, calls of earlier messages."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from gateway.dialects.shared.sampling_fields import shown, told
from gateway.generation.conversations import MAX_TOOLS

EXAMPLE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class FunctionFields(BaseModel, strict=True):
    """A function that the model may call."""

    name: Annotated[
        str, told("Its name: up to 128 letters, digits, `_`, `-` and `.`. Each tool has another one.", "weather")
    ]
    description: Annotated[str | None, told("What it does, for the model.", "The weather of a city.")] = None
    parameters: Annotated[
        dict[str, Any] | None, told("The JSON schema of its arguments. Absent: it takes none.", EXAMPLE)
    ] = None
    strict: Annotated[bool | None, told("`true`: calls follow the schema.", False)] = None


class ToolFields(BaseModel, strict=True):
    """A tool. Only functions are supported."""

    type: Annotated[Literal["function"], told("The only type that is supported.", "function")]
    function: Annotated[FunctionFields, told("The function.")]


class FunctionName(BaseModel, strict=True):
    """The name of a function."""

    name: Annotated[str, told("The name of one of `tools`.", "weather")]


class NamedTool(BaseModel, strict=True):
    """The choice of one function, which the answer must call."""

    type: Annotated[Literal["function"], told("The only type that is supported.", "function")]
    function: Annotated[FunctionName, told("The function.")]


def _kind_of_choice(value: Any) -> str:
    return "NamedTool" if isinstance(value, dict | NamedTool) else "Word"


Tools = Annotated[list[ToolFields], Field(fail_fast=True), shown(maxItems=MAX_TOOLS)]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")] | Annotated[NamedTool, Tag("NamedTool")],
    Discriminator(_kind_of_choice),
]


class FunctionCall(BaseModel, strict=True):
    """A call of a function."""

    name: Annotated[str, told("The function's name.", "weather")]
    arguments: Annotated[
        str | dict[str, Any] | None,
        told("Its arguments: the text of a JSON object. Absent: none.", '{"city": "Oslo"}'),
    ] = None


class ToolCall(BaseModel, strict=True):
    """A call of a tool, as an earlier answer had it."""

    id: Annotated[str | None, told("The id that the result names.", "call_1")] = None
    type: Annotated[Literal["function"] | None, told("The only type that is supported.", "function")] = None
    function: Annotated[FunctionCall, told("What is called.")]
