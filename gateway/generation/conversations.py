"""Checks of a conversation: its tools, the choice among them, and that each result follows its call. Pure."""

import json
import re
from collections.abc import Sequence
from typing import Final

from gateway.generation.checks import refuse
from gateway.text.channels.markers import Markers
from gateway.text.chat_template import ChatTemplates
from gateway.words.complaints import short
from gateway.words.places import CHOICE, REASONING_TOKENS, TOOLS, TURNS, Place
from gateway.words.request import Call, Conversation, Named, Result, Tool, Turn

MAX_TOOLS: Final = 1024
MAX_SCHEMA_CHARS: Final = 262_144  # of all tools together
TOOL_NAME: Final = "^[A-Za-z0-9_.-]{1,128}$"
HINT: Final = "--chat-template can give another"


def check_conversation(conversation: Conversation) -> None:
    """Fault if its tools, its choice, its calls or its results make no sense, whatever the model is."""
    _check_tools(conversation.tools)
    _check_choice(conversation)
    _check_calls(conversation.turns)
    _check_results(conversation.turns)


def check_format(conversation: Conversation, templates: ChatTemplates, tool_format: str | None) -> None:
    """Fault if this model cannot be told of the tools or the calls. `tool_format`: the name of the format in which its
    answers call tools; None: no format is known."""
    if conversation.tools and tool_format is None:
        refuse(TOOLS, f"the model's chat template renders no tools in a format of calls that Baton knows; {HINT}")

    with_tools = bool(conversation.tools)
    if with_tools and not templates.shows_tools(conversation.template):
        refuse(TOOLS, f"the chat template renders no tools, so no calls in the format {tool_format}; {HINT}")

    for index, turn in enumerate(conversation.turns):
        for position, part in enumerate(turn.parts):
            if isinstance(part, Call) and not templates.shows_calls(conversation.template, with_tools=with_tools):
                refuse((*TURNS, index, "parts", position), f"the chat template renders no calls of tools; {HINT}")


def check_budget(conversation: Conversation, markers: Markers) -> None:
    """Fault for a budget of reasoning tokens that answers in this format cannot keep."""
    if conversation.reasoning_tokens is not None and (why := no_budget(markers)) is not None:
        refuse(REASONING_TOKENS, why)


def no_budget(markers: Markers) -> str | None:
    """Why answers in this format can keep no budget of reasoning tokens; None: they can."""
    tags = markers.format.reasoning
    if tags is None:
        return "got a budget, but the model's answers have no reasoning in a format that Baton knows"
    found = markers.by_id.values()
    in_text = next((marker for marker in (tags.opening, tags.closing) if marker not in found), None)
    return in_text and f"got a budget, but {in_text!r} is several tokens of this model, so none can be kept"


def is_bound(conversation: Conversation) -> bool:
    """Whether only a grammar can hold its calls: one that must be made, or that follows a schema."""
    if not conversation.tools or conversation.choice == "none":
        return False
    return conversation.choice != "auto" or any(tool.strict for tool in conversation.tools)


def refuse_both(conversation: Conversation) -> None:
    """Fault for a call that must be made in an answer which follows a grammar of the client's: it could not be made."""
    if is_bound(conversation) and conversation.choice != "auto":
        refuse(CHOICE, "got a call that must be made, beside a grammar of the whole answer: expected one of both")


def _check_tools(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:
        refuse(TOOLS, f"has {len(tools)} items, expected at most {MAX_TOOLS}")

    known, num_chars = set[str](), 0
    for index, tool in enumerate(tools):
        where = (*TOOLS, index, "name")
        _check_name(tool.name, where)
        if tool.name in known:
            refuse(where, f"got {short(tool.name)} twice, expected each name once")
        known.add(tool.name)

        num_chars += len(json.dumps(tool.schema))
        if num_chars > MAX_SCHEMA_CHARS:
            what = "its schema and those before have more than"
            refuse((*TOOLS, index, "schema"), f"{what} {MAX_SCHEMA_CHARS} characters, expected at most so many")


def _check_name(name: str, where: Place) -> None:
    if not re.fullmatch(TOOL_NAME, name):
        refuse(where, f"got {short(name)}, expected 1 to 128 letters, digits, '_', '-' or '.'")


def _check_calls(turns: Sequence[Turn]) -> None:
    for index, turn in enumerate(turns):
        for position, part in enumerate(turn.parts):
            if isinstance(part, Call):
                _check_name(part.name, (*TURNS, index, "parts", position, "name"))


def _check_choice(conversation: Conversation) -> None:
    choice, tools = conversation.choice, conversation.tools
    if not tools and (choice == "required" or isinstance(choice, Named)):
        refuse(CHOICE, "got a call that must be made, but no tools, expected ", TOOLS, " beside it")
    if isinstance(choice, Named) and all(tool.name != choice.name for tool in tools):
        refuse((*CHOICE, "name"), f"got {short(choice.name)}, expected the name of one of ", TOOLS)


def _check_results(turns: Sequence[Turn]) -> None:
    """Fault for a result whose call is not in a turn before. One that names no call passes."""
    known = set[str]()
    for index, turn in enumerate(turns):
        for position, part in enumerate(turn.parts):
            if isinstance(part, Result) and part.call_id and part.call_id not in known:
                calls = (part for later in turns[index:] for part in later.parts if isinstance(part, Call))
                is_early = any(call.id == part.call_id for call in calls)
                what = "the call is in a later message" if is_early else "no message has a call with this id"
                refuse(
                    (*TURNS, index, "parts", position, "call_id"),
                    f"got {short(part.call_id)}, but {what}: expected the id of a call before",
                )
        known |= {part.id for part in turn.parts if isinstance(part, Call)}
