"""Finds out how a model writes calls and thoughts, from what its chat template makes of a conversation with them. Pure.

The conversation has a call of a tool with a name that no template has, with arguments as a dictionary and as JSON text.
The format is the one whose reader finds this call again in the rendered text.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from gateway.text.channels.channels import Channels
from gateway.text.channels.fold import fold
from gateway.text.channels.formats import CALL_FORMATS, SEED_THINK, THINK
from gateway.text.channels.json_value import whole_json
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import CallFormat, Format, ReasoningTags
from gateway.words.places import Fault

Message = dict[str, Any]
ArgumentsForm = Literal["object", "text"]  # of a call, as a template takes them
Render = Callable[
    [list[Message], list[Message]], str
]  # messages and tools to a prompt; Fault: the template refuses them

NAME: Final = "baton_probe_tool"
KEY: Final = "baton_probe_key"
ARGUMENTS: Final[Mapping[str, Any]] = {KEY: "probe of a value", f"{KEY}_2": 7}
THOUGHT: Final = "probe of a thought"
SCHEMA: Final[Message] = {
    "type": "object",
    "properties": {KEY: {"type": "string"}, f"{KEY}_2": {"type": "integer"}},
    "required": [KEY],
}
TOOL: Final[Message] = {
    "type": "function",
    "function": {"name": NAME, "description": "A probe.", "parameters": SCHEMA},
}
REASONING_NAMES: Final = ("reasoning_content", "reasoning", "thinking")  # of fields that templates read
USER: Final[Message] = {"role": "user", "content": "probe of a question"}


class Detected(NamedTuple):
    """How a model writes calls and thoughts, as its template tells. `arguments` matter if `format` has calls."""

    format: Format
    arguments: ArgumentsForm


def detect(render: Render) -> Detected:
    """The format that the template renders. It has no calls if no known format finds the rendered call again."""
    reasoning = _reasoning(render)
    given: Mapping[ArgumentsForm, Any] = {"object": dict(ARGUMENTS), "text": json.dumps(ARGUMENTS)}
    for form, arguments in given.items():
        rendered = _rendered(render, [USER, _call(arguments)], [TOOL])
        for calls in dict.fromkeys(CALL_FORMATS.values()):
            if _finds_call(calls, rendered):
                return Detected(Format(calls, reasoning), form)
    return Detected(Format(None, reasoning), "object")


def _call(arguments: Any) -> Message:
    function = {"name": NAME, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
    }


def _rendered(render: Render, messages: list[Message], tools: list[Message]) -> str:
    """The rendered text; none, if the template refuses the messages."""
    try:
        return render(messages, tools)
    except Fault:
        return ""


def _finds_call(calls: CallFormat, rendered: str) -> bool:
    """The format finds the call in the text, once, with its arguments."""
    markers = Markers(Format(calls), token_id=lambda _: None)
    reader = Channels(markers, tools={NAME: SCHEMA}, is_reasoning_open=False, response_id="", choice=0)
    found = fold(reader.text(rendered) + reader.end()).calls
    if len(found) != 1 or whole_json(found[0].arguments) is None:
        return False
    return bool(json.loads(found[0].arguments) == ARGUMENTS)


def _reasoning(render: Render) -> ReasoningTags | None:
    """The tags that the template writes around thoughts, or at the end of a prompt."""
    thoughts = dict.fromkeys(REASONING_NAMES, THOUGHT)
    thoughtful = {"role": "assistant", "content": "probe of an answer", **thoughts}
    rendered = _rendered(render, [USER, thoughtful], [])
    prompt = _rendered(render, [USER], [])

    for tags in (THINK, SEED_THINK):
        opening, closing = re.escape(tags.opening), re.escape(tags.closing)
        is_written = re.search(rf"{opening}\s*{THOUGHT}\s*{closing}", rendered)
        if is_written or re.search(rf"{opening}\s*(?:{closing}\s*)?\Z", prompt):
            return tags
    return None
