"""How chats write thoughts and calls of tools."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai.write_chat import MESSAGE, ChatForm
from gateway.serving.gathered import Gathered
from gateway.serving.parts import parts_of
from gateway.words.events import CallBegin, CallBroken, CallDelta, CallEnd, Event, ReasoningDelta, Step, TextDelta

FORM = ChatForm()
Fields = dict[str, Any]


def as_json(value: Any) -> Fields:
    """What a client reads."""
    found: Fields = json.loads(b"".join(parts_of(value)))
    return found


def whole(steps: Iterable[Step]) -> Fields:
    """The message of a body."""
    gathered = Gathered()
    for step in steps:
        gathered.take(step)
    message: Fields = as_json(FORM.whole(gathered))["message"]
    return message


def folded(steps: Sequence[Step]) -> Fields:
    """The message as a client of OpenAI's makes it of deltas, without the calls that are broken."""
    message: Fields = {"content": "", "reasoning_content": "", "reasoning": "", "tool_calls": []}
    for number, step in enumerate(steps):
        delta = as_json(FORM.added(step, is_first=number == 0))["delta"]
        assert ("role" in delta) == (number == 0)
        for name in ("content", "reasoning_content", "reasoning"):
            message[name] += delta.get(name, "")
        indices = [told["index"] for told in delta.get("tool_calls", ())]
        assert indices == sorted(set(indices)), "no delta has an index twice"
        for told in delta.get("tool_calls", ()):
            if "id" in told:
                assert told["index"] == len(message["tool_calls"])
                message["tool_calls"].append({name: told[name] for name in ("id", "type", "function")})
            else:
                message["tool_calls"][told["index"]]["function"]["arguments"] += told["function"]["arguments"]
    broken = {event.call for step in steps for event in step.events if isinstance(event, CallBroken)}
    message["tool_calls"] = [call for index, call in enumerate(message["tool_calls"]) if index not in broken]
    thoughts = {name: message[name] for name in ("reasoning_content", "reasoning") if message[name]}
    calls = {"tool_calls": message["tool_calls"]} if message["tool_calls"] else {}
    content = message["content"] or (None if calls else "")
    return MESSAGE | {"content": content} | thoughts | calls


texts = st.text('a"\\\u00e9{', min_size=1, max_size=5)


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    """What a choice gains: text and thoughts in any order, calls one after another."""
    found, num_calls = list[Event](), 0
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["text", "thought", "call"]))
        if kind == "call":
            arguments = [CallDelta(num_calls, part) for part in draw(st.lists(texts, max_size=3))]
            end = CallEnd(num_calls) if draw(st.booleans()) else CallBroken(num_calls)
            found += [CallBegin(num_calls, f"call_{num_calls}", draw(texts)), *arguments, end]
            num_calls += 1
        else:
            found.append(TextDelta(draw(texts)) if kind == "text" else ReasoningDelta(draw(texts)))
    return found


@given(events(), st.data())
def test_a_whole_message_is_the_fold_of_its_deltas(gained: list[Event], drawn: st.DataObject) -> None:
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(gained)), max_size=5)))
    steps = [Step(tuple(gained[start:end])) for start, end in zip([0, *cuts], [*cuts, len(gained)], strict=True)]
    assert folded(steps) == whole(steps) == whole([Step((event,)) for event in gained])


def test_a_delta_has_one_item_for_each_call() -> None:
    """Clients of OpenAI's take a second item with the index of the first for another call."""
    first = (CallDelta(0, '{"a":'), CallDelta(0, "1}"), CallEnd(0))
    second = (CallBegin(1, "call_x", "look_up"), CallDelta(1, "{"), TextDelta("a"), CallDelta(1, "}"), CallEnd(1))
    third = (CallBegin(2, "call_y", "add"),)
    assert as_json(FORM.added(Step((*first, *second, *third)), is_first=False))["delta"]["tool_calls"] == [
        {"index": 0, "function": {"arguments": '{"a":1}'}},
        {"index": 1, "id": "call_x", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
        {"index": 2, "id": "call_y", "type": "function", "function": {"name": "add", "arguments": ""}},
    ]


def test_a_delta_without_text_has_an_empty_one_unless_it_has_something_else() -> None:
    assert FORM.added(Step(()), is_first=False) == {"delta": {"content": ""}}
    assert FORM.added(Step((CallEnd(0),)), is_first=False) == {"delta": {"content": ""}}
    thought = FORM.added(Step((ReasoningDelta("a"),)), is_first=False)
    assert thought == {"delta": {"reasoning_content": "a", "reasoning": "a"}}


def test_content_is_null_beside_calls_alone() -> None:
    call = (CallBegin(0, "call_0", "f"), CallDelta(0, "{}"), CallEnd(0))
    assert whole([Step(call)])["content"] is None
    assert whole([Step((TextDelta("a"), *call))])["content"] == "a"
    assert whole([Step((ReasoningDelta("a"),))])["content"] == ""


def test_long_arguments_are_encoded_in_parts() -> None:
    pieces = [f'"{number}\u00e9" ' for number in range(5000)]
    found = whole([Step((CallBegin(0, "call_0", "f"), *(CallDelta(0, piece) for piece in pieces)))])
    assert found["tool_calls"][0]["function"]["arguments"] == "".join(pieces)
