"""Says what became of a request: each answer is right, refused in a sentence, or a finding.

status 200 --> each choice: "stop" must follow the rule, "length" must begin as an answer does
status 400 --> names its field, unless the body is no JSON       status 429, 503 --> counted, with their words
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jiter

from tests.fuzz.served.asks import Ask, Rule
from tests.fuzz.served.rules import has
from tests.fuzz.served.validators import NotJudged, wrong_with

MAX_RECOGNISED: Final = 150  # characters of an answer whose membership in a grammar is looked at
DEAD_END: Final = re.compile(r"allows no token here|cannot go on in its grammar|has ended before its grammar")
# Bounds that an answer may meet while it goes on: of its work, and of the library.
BEYOND_A_BOUND: Final = re.compile(
    r"takes too much work|Current row has|Too many items|too many expressions|too many states"
)
REPLACED: Final = re.compile(r"grammars of others|process(es)? that trie[ds]|the grammar were killed")
TOO_LONG: Final = re.compile(r"maximum context length is \d+ tokens, but messages with tools has ")
CUT: Final = "\ufffd"  # in place of the bytes of a character that is not whole


@dataclass(frozen=True)
class Got:
    """What came: the status, and the body; of a stream its events joined into choices."""

    status: int
    body: Any


@dataclass(frozen=True)
class Verdict:
    """`kind`: a word for counts; `why`: what is wrong. `is_finding`: no request may end so."""

    kind: str
    why: str = ""
    is_finding: bool = False


def verdict(ask: Ask, got: Got) -> Verdict:
    """The worst of what one request has come to."""
    error = got.body.get("error") if isinstance(got.body, dict) else None
    if got.status == 200 and error is None:
        found = [_choice(ask.rule, choice) for choice in got.body["choices"]]
        return next((each for each in found if each.is_finding), found[0])
    if not isinstance(error, dict) or not error.get("message"):
        return Verdict("no error object", str(got.body)[:300], is_finding=True)
    return _refusal(ask, got.status, error)


def _refusal(ask: Ask, status: int, error: Mapping[str, Any]) -> Verdict:
    message = str(error["message"])
    if status in (429, 503):
        return Verdict(f"{status} {error.get('code')}", message, is_finding=not REPLACED.search(message))
    if status >= 500 or (status == 200 and error.get("code") not in ("grammar_fault", "bad_request")):
        return Verdict(f"{status} {error.get('code')}", message, is_finding=True)
    if error.get("code") == "grammar_fault":
        if BEYOND_A_BOUND.search(message):
            return Verdict("stopped at a bound", message)
        return Verdict("dead end" if DEAD_END.search(message) else "fault at a worker", message, is_finding=True)
    if message.startswith("the body is nested"):
        return Verdict("refused", message)
    fields = ("tools", "tool_choice") if ask.grammar == "tools" else (ask.grammar,)
    if ask.grammar == "tools" and TOO_LONG.search(message):
        return Verdict("refused", message)
    if ask.grammar and str(error.get("param")).partition(".")[0] not in fields:
        return Verdict("another field is named", f"{error.get('param')}: {message}", is_finding=True)
    return Verdict("refused", message)


def _choice(rule: Rule, choice: Mapping[str, Any]) -> Verdict:
    text, reason = choice["text"] or "", choice["finish_reason"]
    if rule.kind == "tools":
        return _calls(rule.value, choice["calls"], reason)
    if reason == "length":
        wrong = _wrong_beginning(rule, text)
        return Verdict("cut", f"{wrong}: {text[-200:]!r}" if wrong else "", is_finding=bool(wrong))
    if reason != "stop":
        return Verdict("another end", str(reason), is_finding=True)
    try:
        wrong = _wrong(rule, text)
    except NotJudged as error:
        return Verdict("not judged", str(error))
    if wrong.startswith("disputed"):
        return Verdict("disputed", f"{wrong}: {text[:200]!r}")
    return Verdict("does not follow", f"{wrong}: {text[:200]!r}", is_finding=True) if wrong else Verdict("follows")


def _calls(tools: list[dict[str, Any]], calls: list[list[str]], reason: str) -> Verdict:
    """An answer that must call one of these tools."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    whole_calls = calls[:-1] if reason == "length" else calls
    if reason not in ("length", "tool_calls") or not (calls or reason == "length"):
        return Verdict("another end", f"{reason} with {len(calls)} calls", is_finding=True)
    if unknown := [name for name, _ in calls if name not in schemas]:
        return Verdict("does not follow", f"no tool is called {unknown[0]!r}", is_finding=True)
    try:
        wrong = next(filter(None, (_wrong_call(schemas[name], text) for name, text in whole_calls)), "")
    except NotJudged as error:
        return Verdict("not judged", str(error))
    if wrong.startswith("disputed"):
        return Verdict("disputed", wrong)
    if wrong:
        return Verdict("does not follow", wrong, is_finding=True)
    return Verdict("cut" if reason == "length" else "follows")


def _wrong_call(schema: Any, arguments: str) -> str:
    """Why these arguments do not follow the schema; "" if they do."""
    try:
        if not isinstance(json.loads(arguments), dict):
            return f"no object: {arguments[:200]!r}"
    except ValueError as error:
        return f"no JSON: {error}: {arguments[:200]!r}"
    wrong = wrong_with(arguments, schema)
    return f"{wrong}: {arguments[:200]!r}" if wrong else ""


def _wrong(rule: Rule, text: str) -> str:
    """Why a whole answer does not follow its rule; "" if it does."""
    match rule.kind:
        case "json":
            return wrong_with(text, rule.value)
        case "regex" if all(unicodedata.category(each) != "Cn" for each in text):  # Python may know fewer characters
            return "" if re.fullmatch(rule.value, text) else "no match"
        case "choice":
            return "" if text in rule.value else "none of the texts"
        case "ebnf" if len(text) <= MAX_RECOGNISED:
            return "" if has(rule.value, text) else "no answer of the grammar"
        case "tags":
            return _wrong_tags(rule.value, text)
    raise NotJudged("this rule is not judged")


def _wrong_tags(structures: list[dict[str, Any]], text: str) -> str:
    """Why a text does not have what stands between each begin and its end; "" if it does."""
    place = 0
    while starts := [(at, each) for each in structures if (at := text.find(each["begin"], place)) >= 0]:
        at, structure = min(starts, key=lambda pair: pair[0])
        place = at + len(structure["begin"])
        begin = len(text[place:]) - len(text[place:].lstrip(" \n"))
        try:
            _, length = json.JSONDecoder().raw_decode(text[place + begin :])
        except ValueError as error:
            return f"no JSON in {structure['begin']}: {error}"
        after = place + begin + length
        if wrong := wrong_with(text[place:after], structure["schema"]):
            return wrong
        if not text[after:].lstrip(" \n").startswith(structure["end"]):
            return f"no {structure['end']}"
        place = text.index(structure["end"], after)
    return ""


def _wrong_beginning(rule: Rule, text: str) -> str:
    """Why a text is not the beginning of an answer, as far as that is cheap to say."""
    whole = text.rstrip(CUT)
    if rule.kind == "choice":
        return "" if any(each.startswith(whole) for each in rule.value) else "no beginning of one of the texts"
    if rule.kind != "json":
        return ""
    try:
        jiter.from_json(whole.encode(), partial_mode="trailing-strings", allow_inf_nan=False)
    except ValueError as error:
        return "" if str(error).startswith("EOF") else f"no beginning of JSON: {error}"
    return ""


def joined(events: Iterator[Any]) -> Got:
    """What a stream of a chat has come to: the texts of its choices, or its last event if that is an error."""
    texts: dict[int, str] = {}
    calls: dict[int, list[list[str]]] = {}
    reasons: dict[int, str] = {}
    for event in events:
        if "error" in event:
            return Got(200, event)
        for choice in event["choices"]:
            place = choice["index"]
            texts[place] = texts.get(place, "") + (choice["delta"].get("content") or "")
            own = calls.setdefault(place, [])
            for item in choice["delta"].get("tool_calls", ()):
                if item["index"] == len(own):
                    own.append([item["function"]["name"], ""])
                own[item["index"]][1] += item["function"]["arguments"]
            reasons[place] = choice.get("finish_reason") or reasons.get(place, "")
    choices = [
        {"text": texts[place], "calls": calls[place], "finish_reason": reasons[place]} for place in sorted(texts)
    ]
    return Got(200, {"choices": choices})


def whole(status: int, body: Any) -> Got:
    """What an answer that is no stream has come to."""
    if status != 200:
        return Got(status, body)
    choices = [
        {
            "text": choice["message"]["content"],
            "calls": [
                [call["function"]["name"], call["function"]["arguments"]]
                for call in choice["message"].get("tool_calls", ())
            ],
            "finish_reason": choice["finish_reason"],
        }
        for choice in body["choices"]
    ]
    return Got(200, {"choices": choices})
