"""Messages and tools as chat templates expect them, of the turns of a conversation. Pure.

Templates of some models print content and arguments, others test `content is none` or go through the arguments. Absent
and Arguments give both what they expect.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from gateway.words.complaints import short
from gateway.words.places import Fault, Place
from gateway.words.request import Call, Reasoning, Result, Text, Tool, Turn
from gateway.words.strict_json import parse_json
from protocol.errors import BadRequest

ArgumentsForm = Literal["object", "text"]  # of a call, as a template takes them; an object also prints as text
REASONING_NAMES: Final = ("reasoning_content", "reasoning", "thinking")  # the field that a template reads
NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


class Absent(str):
    """Content that is not there. It prints as nothing and joins other text; to `is none` and `== none` it is none."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is None or other == ""

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("")


class Arguments(dict[str, Any]):
    """The arguments of a call. They print as JSON, as the client has written it, and join text as that."""

    def __init__(self, arguments: Mapping[str, Any], text: str | None = None) -> None:
        super().__init__(arguments)
        self._text = text

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False) if self._text is None else self._text

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def is_none(value: object) -> bool:
    """The test `none` of templates."""
    return value is None or isinstance(value, Absent)


def messages_of(turn: Turn, where: Place, form: ArgumentsForm = "object") -> Iterator[dict[str, Any]]:
    """The messages of a turn: one for each result, and one for all else. Its texts are joined, fields that are null are
    left out. Fault for arguments that are no object; `where`: the turn's place."""
    results = [part for part in turn.parts if isinstance(part, Result)]
    for result in results:
        yield _result(result, turn)
    if results and len(results) == len(turn.parts):
        return

    texts = [part.text for part in turn.parts if isinstance(part, Text)]
    fields = {"role": turn.role, **_given(turn.more), "content": "".join(texts) if texts else Absent()}
    thoughts = [part.text for part in turn.parts if isinstance(part, Reasoning)]
    if thoughts:
        fields |= dict.fromkeys(REASONING_NAMES, "".join(thoughts))

    calls = [
        _call(part, (*where, "parts", position), form)
        for position, part in enumerate(turn.parts)
        if isinstance(part, Call)
    ]
    if calls:  # templates ask whether the message has the field
        fields["tool_calls"] = calls
    yield fields


def tools_of(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as OpenAI's API writes them. One without a schema takes no arguments."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({} if tool.description is None else {"description": tool.description}),
                "parameters": NO_ARGUMENTS if tool.schema is None else tool.schema,
            },
        }
        for tool in tools
    ]


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _result(result: Result, turn: Turn) -> dict[str, Any]:
    fields = {"role": "tool", **_given(turn.more), "content": result.text}
    if result.call_id:
        fields["tool_call_id"] = result.call_id
    if result.is_error:
        fields["is_error"] = True
    return fields


def _call(call: Call, where: Place, form: ArgumentsForm) -> dict[str, Any]:
    arguments = _arguments(call.arguments, (*where, "arguments"))
    function = {"name": call.name, "arguments": arguments if form == "object" else str(arguments)}
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": function}


def _arguments(text: str, where: Place) -> Arguments:
    """The object that the text says; none at all is an empty one. Fault for anything else."""
    if not text.strip():
        return Arguments({})
    try:
        arguments = parse_json(text.encode())
    except BadRequest:
        arguments = None
    if not isinstance(arguments, dict):
        raise Fault(where, where, f": got {short(text)}, expected the text of a JSON object")
    return Arguments(arguments, text)
