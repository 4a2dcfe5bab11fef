"""The verdict on an answer, by how it ended and by its rule."""

from typing import Any

import pytest

from tests.fuzz.served.asks import Ask, Rule
from tests.fuzz.served.judge import Got, joined, verdict, whole
from tests.fuzz.served.rules import Part

NUMBER = Rule("json", {"type": "integer", "exclusiveMinimum": 0})
RULES = {"start": [[Part("text", "a"), Part("name", "start", "?")]]}
TAG = [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}]


def of(rule: Rule, text: str, reason: str = "stop") -> tuple[str, bool]:
    found = verdict(Ask(0, "x", "regex", b"", rule), Got(200, {"choices": [{"text": text, "finish_reason": reason}]}))
    return found.kind, found.is_finding


def error(status: int, code: str, message: str, param: str | None = None, grammar: str = "regex") -> tuple[str, bool]:
    body = {"error": {"message": message, "type": "x", "param": param, "code": code}}
    found = verdict(Ask(0, "x", grammar, b""), Got(status, body))
    return found.kind, found.is_finding


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        (NUMBER, "3", "0"),
        (NUMBER, " 3\n", "3 4"),
        (Rule("regex", "a+"), "aa", "aab"),
        (Rule("choice", ["yes", "no"]), "no", "n"),
        (Rule("ebnf", RULES), "aaa", ""),
        (Rule("tags", TAG), "so <f>1</f> and <f> 2 </f>", "so <f>1"),
        (Rule("tags", TAG), "no tag", "<f>true</f>"),
        (Rule("tags", TAG), "", "<f>1</g>"),
        (Rule("tags", TAG), "x", "<f>{</f>"),
    ],
)
def test_a_whole_answer_follows_its_rule(rule: Rule, right: str, wrong: str) -> None:
    assert of(rule, right) == ("follows", False)
    assert of(rule, wrong) == ("does not follow", True)


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        (NUMBER, '{"a": [1, "b\ufffd', '{"a" 1'),
        (NUMBER, "", "tru e"),
        (NUMBER, "-", "NaN"),
        (Rule("choice", ["yes", "no"]), "ye", "yn"),
    ],
)
def test_an_answer_that_was_cut_begins_as_one_does(rule: Rule, right: str, wrong: str) -> None:
    assert of(rule, right, "length") == ("cut", False)
    assert of(rule, wrong, "length") == ("cut", True)


def test_ends_that_no_request_may_have() -> None:
    assert of(NUMBER, "3", "abort") == ("another end", True)
    assert error(500, "internal_error", "x") == ("500 internal_error", True)
    assert error(200, "worker_lost", "x") == ("200 worker_lost", True)
    assert error(400, "bad_request", "x", "n") == ("another field is named", True)
    assert error(400, "grammar_fault", "the grammar allows no token here (nothing may follow)") == ("dead end", True)
    assert error(400, "grammar_fault", "its mask cannot be made: KeyError") == ("fault at a worker", True)
    assert error(503, "unavailable", "no worker")[1]
    assert verdict(Ask(0, "x", "", b""), Got(400, "<html>")).kind == "no error object"


def test_ends_that_a_request_may_have() -> None:
    assert error(400, "bad_request", "x", "regex") == ("refused", False)
    assert error(422, "bad_request", "x", "regex.json") == ("refused", False)
    assert error(400, "bad_request", "the body is not valid JSON", grammar="") == ("refused", False)
    assert error(400, "bad_request", "the body is nested deeper than 200 levels") == ("refused", False)
    took = "the grammar takes too much work: 3 s, expected at most 2 s"
    assert error(200, "grammar_fault", took) == ("stopped at a bound", False)
    assert not error(429, "overloaded", "the process that tries grammars was silent for 30 s; try again")[1]


def test_the_worst_choice_of_an_answer_counts() -> None:
    choices = [{"text": text, "finish_reason": "stop"} for text in ("3", "0", "4")]
    assert verdict(Ask(0, "x", "regex", b"", NUMBER), Got(200, {"choices": choices})).kind == "does not follow"


def test_validators_that_disagree_and_rules_that_nobody_judges_are_no_findings() -> None:
    assert of(Rule(), "x") == ("not judged", False)
    assert of(Rule("regex", "a"), "\U0003fffe") == ("not judged", False)
    assert of(Rule("json", {"type": "x"}), "1") == ("not judged", False)


def test_events_of_a_stream_are_joined_by_choice() -> None:
    def event(index: int, text: str | None, reason: str | None = None) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": reason}]}

    events = [event(1, "a"), event(0, "b"), event(1, None), event(1, "c", "stop"), event(0, "d", "length")]
    texts = (("bd", "length"), ("ac", "stop"))
    choices = [{"text": text, "calls": [], "finish_reason": reason} for text, reason in texts]
    assert joined(iter(events)) == Got(200, {"choices": choices})
    fault = {"error": {"message": "x"}}
    assert joined(iter([*events, fault])) == Got(200, fault)


def test_an_answer_that_is_no_stream_has_its_choices() -> None:
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    assert whole(200, body) == Got(200, {"choices": [{"text": "x", "calls": [], "finish_reason": "stop"}]})
    assert whole(400, {"error": 1}) == Got(400, {"error": 1})


TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "g", "parameters": {}}},
]
CALLS = [
    ([["f", '{"a": 1}'], ["g", "{}"]], "tool_calls", ("follows", False)),
    ([["f", '{"a": 1}'], ["f", '{"a": "x']], "length", ("cut", False)),
    ([], "length", ("cut", False)),
    ([["f", '{"a": "x"}'], ["g", "{"]], "length", ("does not follow", True)),
    ([["f", '{"a": "x"}']], "tool_calls", ("does not follow", True)),
    ([["f", "[1]"]], "tool_calls", ("does not follow", True)),
    ([["f", '{"a": 1']], "tool_calls", ("does not follow", True)),
    ([["h", "{}"]], "tool_calls", ("does not follow", True)),
    ([["f", '{"a": 1}']], "stop", ("another end", True)),
    ([], "tool_calls", ("another end", True)),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("calls", "reason", "wanted"), CALLS)
def test_calls_that_must_be_made_follow_their_tools(
    calls: list[list[str]], reason: str, wanted: tuple[str, bool], stream: bool
) -> None:
    told: list[dict[str, Any]] = [
        {"index": index, "function": {"name": name, "arguments": text}} for index, (name, text) in enumerate(calls)
    ]
    if stream:
        events = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in told]
        got = joined(iter([*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}]))
    else:
        message = {"content": None, "tool_calls": told}
        got = whole(200, {"choices": [{"message": message, "finish_reason": reason}]})
    found = verdict(Ask(0, "x", "tools", b"", Rule("tools", TOOLS)), got)
    assert (found.kind, found.is_finding) == wanted


def test_a_refusal_of_tools_names_them_or_the_choice_among_them() -> None:
    for param in ("tools", "tools.3.function.parameters", "tool_choice"):
        assert error(400, "bad_request", "x", param, "tools") == ("refused", False)
    assert error(400, "bad_request", "x", "messages.0", "tools") == ("another field is named", True)
    for what, kind in (("messages with tools has", "refused"), ("messages has", "another field is named")):
        too_long = f"This model's maximum context length is 9 tokens, but {what} 10 tokens"
        assert error(400, "context_length_exceeded", too_long, "messages", "tools")[0] == kind
