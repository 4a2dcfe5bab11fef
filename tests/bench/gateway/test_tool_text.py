"""Conversations of the benchmark are what agents send."""

import json
from typing import Any

from bench.gateway.tool_text import call_text, gathered, tools, with_results

DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": "We"},
    {"content": "ll."},
    {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "look_up_0", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "look_up_1", "arguments": "{}"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
    {},
]


def test_a_message_is_gathered_of_its_deltas_and_goes_on_with_results() -> None:
    said = gathered(DELTAS)
    assert (said["role"], said["content"]) == ("assistant", "Well.")
    told = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in said["tool_calls"]]
    assert told == [("a", "look_up_0", '{"city": "Oslo"}'), ("b", "look_up_1", "{}")]

    question = {"role": "user", "content": "Hi"}
    first, second, *results = with_results([question], said)
    assert (first, second) == (question, said)
    assert [(turn["role"], turn["tool_call_id"]) for turn in results] == [("tool", "a"), ("tool", "b")]


def test_a_message_of_calls_alone_has_no_content() -> None:
    assert gathered(DELTAS[2:3])["content"] is None


def test_tools_have_names_of_their_own_and_finite_answers() -> None:
    made = [tool["function"] for tool in tools(50)]
    assert len({tool["name"] for tool in made}) == 50
    values = [value for tool in made for value in tool["parameters"]["properties"].values()]
    assert all(value["enum"] for value in values) and all(tool["strict"] for tool in made)


def test_a_call_is_written_as_the_template_writes_it_and_fits_its_tool() -> None:
    begin, call, end = call_text(1).strip().split("\n")
    assert (begin, end) == ("<tool_call>", "</tool_call>")
    assert json.loads(call) == {"name": "look_up_0", "arguments": {"city": "Lima", "days": 2}}
    [tool] = tools(1)
    values = tool["function"]["parameters"]["properties"]
    assert [
        value in values[name]["enum"]
        for index in range(8)
        for name, value in json.loads(call_text(index).split("\n")[1])["arguments"].items()
    ] == [True] * 16
