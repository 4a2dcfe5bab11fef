"""Which grammar an answer follows that thinks and calls tools; its text is written by grammars/calls.py. Pure.

auto        none, so that drafts go on; with a strict tool: text, and calls anywhere in it
required    one call or more      a name: one call of that tool
none        none: the channels of such an answer know no tools, so what looks like a call is text

A budget of reasoning tokens needs a grammar in any case.
"""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any, Final

from gateway.text.channels.json_calls import JsonCalls
from gateway.text.channels.readers import CallFormat, Format, ReasoningTags
from gateway.text.channels.tag_patterns import PairedCalls, TaggedCalls
from gateway.words.request import Conversation, Grammar, Named, Tool

_STYLES: Final = {JsonCalls: "json", TaggedCalls: "tags", PairedCalls: "pairs"}


def grammar_of_calls(
    form: Format,
    tokens: Collection[str],
    conversation: Conversation,
    *,
    is_reasoning_open: bool,
) -> Grammar | None:
    """The grammar of an answer to this conversation; None if it needs none. `tokens`: the markers of the format that
    are one token each."""
    tools = _tools(conversation) if form.calls is not None else []
    is_forced = bool(tools) and conversation.choice != "auto"
    if conversation.reasoning_tokens is None and not is_forced and not any(tool.strict for _, tool in tools):
        return None

    source = {
        "calls": _calls(form.calls) if form.calls is not None and tools else None,
        "reasoning": _reasoning(form.reasoning, is_reasoning_open, conversation.reasoning_tokens),
        "tokens": sorted(tokens),
        "tools": [
            {"index": index, "name": tool.name, "schema": tool.schema, "is_strict": is_forced or tool.strict}
            for index, tool in tools
        ],
        "is_forced": is_forced,
        "is_single": isinstance(conversation.choice, Named) or not conversation.parallel,
    }
    return Grammar("calls", source)


def _tools(conversation: Conversation) -> list[tuple[int, Tool]]:
    """The tools that the answer may call, with their places among those of the request."""
    numbered = list(enumerate(conversation.tools))
    match conversation.choice:
        case "none":
            return []
        case Named(name):
            return [(index, tool) for index, tool in numbered if tool.name == name]
    return numbered


def _calls(form: CallFormat) -> dict[str, Any]:
    assert isinstance(form, JsonCalls | TaggedCalls | PairedCalls), "a format that calls.py can write"
    return {"style": _STYLES[type(form)], **asdict(form)}


def _reasoning(tags: ReasoningTags | None, is_open: bool, budget: int | None) -> dict[str, Any] | None:
    return None if tags is None else {**asdict(tags), "is_open": is_open, "budget": budget}
