"""Tools of a request, and conversations about them, as agents send them. Nothing here asks a server."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

TEMPLATE: Final = "tests/gateway/golden/tools.jinja"  # of a checkout; the bundled model's own has no tools
CITIES: Final = ("Athens", "Lima", "Oslo", "Rome")
QUESTION: Final = "What is the weather in Athens?"
Message = dict[str, Any]


def tools(number: int) -> list[Message]:
    """Functions with a description and two parameters of a few values each, so that any model can make a whole call."""

    def one(index: int) -> Message:
        values = {"city": {"type": "string", "enum": list(CITIES)}, "days": {"type": "integer", "enum": [1, 2, 3]}}
        schema = {"type": "object", "properties": values, "required": list(values), "additionalProperties": False}
        about = f"Looks up the record number {index} of a city for some days, and returns it as text."
        return {"name": f"look_up_{index}", "description": about, "parameters": schema, "strict": True}

    return [{"type": "function", "function": one(index)} for index in range(number)]


def call_text(index: int) -> str:
    """A call as the template writes it."""
    arguments = {"city": CITIES[index % len(CITIES)], "days": index % 3 + 1}
    return f'<tool_call>\n{{"name": "look_up_0", "arguments": {json.dumps(arguments)}}}\n</tool_call>\n'


def gathered(deltas: Iterable[Mapping[str, Any]]) -> Message:
    """The assistant's message of a streamed chat, as a client sends it back."""
    text, calls = "", dict[int, Message]()
    for delta in deltas:
        text += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            function = part["function"]
            if part["index"] not in calls:
                own = {"name": function["name"], "arguments": ""}
                calls[part["index"]] = {"id": part["id"], "type": "function", "function": own}
            calls[part["index"]]["function"]["arguments"] += function.get("arguments") or ""
    return {"role": "assistant", "content": text or None, "tool_calls": list(calls.values())}


def with_results(messages: list[Message], said: Message) -> list[Message]:
    """The conversation of the next turn: what was said, and a result for each of its calls."""
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "12 degrees"} for call in said["tool_calls"]]
    return [*messages, said, *results]
