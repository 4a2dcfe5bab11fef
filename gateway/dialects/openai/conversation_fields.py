"""Fields of a chat that make its prompt: messages, tools, and what the chat template gets besides."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.dialects.openai.tool_fields import FunctionCall, ToolCall, ToolChoice, Tools
from gateway.dialects.shared.sampling_fields import told

MAX_MESSAGES = 10_000
MAX_EFFORT_CHARS = 64
NEED_CONTENT = ("system", "developer", "user", "tool")  # an assistant may have called a tool and said nothing
KnownRole = Literal["system", "developer", "user", "assistant", "tool", "function"]
OTHER_ROLES = tuple(role for role in get_args(KnownRole) if role != "assistant")
OF_ASSISTANTS = ("reasoning_content", "reasoning", "tool_calls", "function_call")


class TextPart(BaseModel, strict=True):
    """A part of a message's content. Only text is supported."""

    type: Annotated[Literal["text"], told("The only type that is supported.", "text")]
    text: Annotated[str, told("The parts' texts are joined without anything between them.", "Tell me a story.")]


Reasoning = str | None
Content = str | Annotated[list[TextPart], Field(fail_fast=True)] | None


class ChatMessage(BaseModel, strict=True, extra="allow"):
    """One message. Other fields (`name`, ...) are passed to the chat template."""

    role: Annotated[KnownRole, told("Who says it.", "user")]
    content: Annotated[
        Content,
        Field(validate_default=True),
        told("What is said. Only a message of `assistant` or `function` may lack it.", "Tell me a story."),
    ] = None
    reasoning_content: Annotated[
        Reasoning, told("Thoughts before the answer, in a message of `assistant`.", "They want a story.")
    ] = None
    reasoning: Annotated[Reasoning, told("The same as `reasoning_content`.", "They want a story.")] = None
    tool_calls: Annotated[
        Annotated[list[ToolCall], Field(fail_fast=True)] | None,
        told("The calls of a message of `assistant`.", []),
    ] = None
    function_call: Annotated[
        FunctionCall | None, told("A call, as OpenAI's API once wrote it. It is read as one of `tool_calls`.", None)
    ] = None
    tool_call_id: Annotated[
        str | None, told("In a message of `tool`: the id of the call whose result it is. Absent: any.", None)
    ] = None

    @field_validator("content")
    @classmethod
    def _has_content(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and info.data.get("role") in NEED_CONTENT:
            raise PydanticCustomError("no_content", "is missing")
        return content

    @field_validator(*OF_ASSISTANTS)
    @classmethod
    def _is_the_assistants(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("role") in OTHER_ROLES:
            raise PydanticCustomError("other_role", "is not the assistant's")
        return value

    @field_validator("reasoning")
    @classmethod
    def _is_the_same(cls, value: Any, info: ValidationInfo) -> Any:
        if value and (info.data.get("reasoning_content") or value) != value:
            raise PydanticCustomError("two_reasonings", "is another text")
        return value


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
EXAMPLE = [{"role": "user", "content": "Tell me a story."}]


class ConversationFields(BaseModel, strict=True):
    """Fields that make the prompt of a chat, beside its messages."""

    chat_template: Annotated[
        str | None, told("The name of one of the model's templates. Absent: `default`.", enum="templates")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, told("Variables for the chat template.", {"enable_thinking": False})
    ] = None
    tools: Annotated[Tools | None, told("Functions that the answer may call.", [])] = None
    tool_choice: Annotated[
        ToolChoice | None,
        told(
            "`auto`: the answer may call tools. `none`: it calls none. `required`: it calls at least one. A name: it "
            "calls this one. Absent: `auto`.",
            "auto",
        ),
    ] = None
    parallel_tool_calls: Annotated[bool | None, told("`false`: an answer calls one tool at most.", True)] = None
    reasoning_effort: Annotated[
        Annotated[str, Field(min_length=1, max_length=MAX_EFFORT_CHARS)] | None,
        told("A variable for the chat template. Templates that do not have it ignore it.", "low"),
    ] = None
