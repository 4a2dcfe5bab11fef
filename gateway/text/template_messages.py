"""Messages as chat templates expect them, of messages as clients send them. Pure.

Clients write null for what is absent, and a call's arguments as JSON text. Templates of some models print content and
arguments, others test `content is none` or go through the arguments. Absent and Arguments give both what they expect.
"""

import json
from collections.abc import Mapping
from typing import Any

from gateway.words.request import Turn
from gateway.words.strict_json import parse_json
from protocol.errors import BadRequest


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


def for_template(turn: Turn) -> dict[str, Any]:
    """The message with its parts joined into one text, without fields that are null, and with arguments to read."""
    text = Absent() if turn.parts is None else "".join(turn.parts)
    fields = {"role": turn.role, **_given(turn.more), "content": text}

    if isinstance(calls := fields.get("tool_calls"), list):
        fields["tool_calls"] = [_call(call) for call in calls]
        if not calls:
            del fields["tool_calls"]  # templates ask whether the message has the field
    if "function_call" in fields:
        fields["function_call"] = _function(fields["function_call"])
    return fields


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _call(call: Any) -> Any:
    """One of `tool_calls`: a function beside the call's id, or the function itself."""
    if not isinstance(call, dict):
        return call
    if "function" in call:
        return {**_given(call), "function": _function(call["function"])}
    return _function(call)


def _function(function: Any) -> Any:
    """A function that is called, with its arguments. What has no name is no function, and stays as it is."""
    if not isinstance(function, dict) or "name" not in function:
        return function
    return {**_given(function), "arguments": _arguments(function.get("arguments"))}


def _arguments(given: Any) -> Any:
    """An object, also for none at all. Text that is no JSON of an object stays: a model may have written it."""
    if isinstance(given, dict):
        return Arguments(given)
    if given is None or (isinstance(given, str) and not given.strip()):
        return Arguments({})
    if not isinstance(given, str):
        return given

    try:
        arguments = parse_json(given.encode())
    except BadRequest:
        return given
    return Arguments(arguments, given) if isinstance(arguments, dict) else given
