"""An agent whose every turn must call a tool: it streams a turn, appends the results of its calls, and goes on."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.baton_process import PATIENCE_S, read_event

MAX_TOKENS = 140  # of a turn: some calls of one that may make several are cut
WORDS = ("stone", "leaf", "river", "hill", "bird", "cloud", "bridge", "lamp", "boat", "apple")


@dataclass
class Call:
    """A call of a tool, as far as it has come."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Turn:
    """What the model says in one turn, as far as it has come."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str = ""
    token_ids: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    prefixes: dict[int, list[tuple[str, str]]] = field(default_factory=dict)  # names, arguments; by tokens received

    @property
    def told(self) -> Any:
        """All of it that does not name the answer, and does not depend on what is cached."""
        counts = [self.usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
        return self.text, self.named, self.finish, self.token_ids, counts

    @property
    def named(self) -> list[tuple[str, str]]:
        """Name and arguments of each call."""
        return [(call.name, call.arguments) for call in self.calls]

    @property
    def whole_calls(self) -> list[Call]:
        """All calls, or all but the one in which `length` has ended the turn."""
        return self.calls[:-1] if self.finish == "length" else self.calls

    def take(self, choice: dict[str, Any]) -> None:
        """One delta."""
        delta = choice["delta"]
        self.text += delta.get("content") or ""
        for item in delta.get("tool_calls", ()):
            if "id" in item:
                assert item["index"] == len(self.calls), "a call begins once, behind those before"
                self.calls.append(Call(item["id"], item["function"]["name"]))
            assert item["index"] == len(self.calls) - 1, "arguments of a call that is over"
            self.calls[-1].arguments += item["function"]["arguments"]
        self.token_ids += choice["token_ids"]
        self.prefixes[len(self.token_ids)] = self.named
        self.finish = choice["finish_reason"] or self.finish

    def inside(self, room: int) -> list[int]:
        """Numbers of tokens behind which some arguments have begun and go on for more than `room` tokens."""
        begun = [
            (number, named[-1], len(named)) for number, named in self.prefixes.items() if named and named[-1][1] != ""
        ]
        return [
            number
            for number, last, index in begun
            if last != (whole := self.named[index - 1]) and self._ends(whole, index) > number + room
        ]

    def _ends(self, whole: tuple[str, str], num_calls: int) -> int:
        """The number of tokens with which this call has all its arguments."""
        return next(
            number
            for number, named in self.prefixes.items()
            if len(named) >= num_calls and named[num_calls - 1] == whole
        )


class Agent:
    """One conversation. The same seed asks the same, so that it gets the same."""

    def __init__(self, url: str, seed: int) -> None:
        rng = random.Random(f"agent {seed}")
        self._url, self._seed = url, seed
        self.tools = [tool(rng, f"t{seed}_{name}") for name in ("look", "take")]
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": f"Once there was a {rng.choice(WORDS)}."}]
        self.turns: list[Turn] = []

    def prompt_ids(self, num_ids: int) -> list[int]:
        """The first tokens of each of its prompts."""
        body = {"messages": self.messages, "tools": self.tools}
        answer = httpx.post(f"{self._url}/tokenize", json=body, timeout=PATIENCE_S).raise_for_status().json()
        found: list[int] = answer["tokens"][:num_ids]
        return found

    def go(self, on_tokens: Callable[[Turn], None] = lambda _: None) -> Turn:
        """One turn, with the results of its calls. `on_tokens` is called after each delta."""
        turn = Turn()
        with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=self._body(), timeout=PATIENCE_S) as answer:
            assert answer.status_code == 200, answer.read()
            events = map(read_event, filter(None, answer.iter_lines()))
            for event in events:
                assert "error" not in event, event
                if "done" in event:
                    break
                turn.usage = event["usage"] or turn.usage
                for choice in event["choices"]:
                    turn.take(choice)
                    on_tokens(turn)
            assert event == {"done": True} and list(events) == [], "nothing follows the end"
        self.turns.append(turn)
        self._append(turn)
        return turn

    def run(self, num_turns: int) -> list[Turn]:
        """Some turns."""
        return [self.go() for _ in range(num_turns)]

    def _body(self) -> dict[str, Any]:
        number = len(self.turns)
        kind = random.Random(f"turn {self._seed} {number}").choice(("required", "named", "several"))
        name = self.tools[number % len(self.tools)]["function"]["name"]
        named = {"type": "function", "function": {"name": name}}
        sampling = {"seed": 1000 * self._seed + number, "temperature": 1.2, "max_tokens": MAX_TOKENS}
        return {
            "messages": self.messages,
            "tools": self.tools,
            "tool_choice": named if kind == "named" else "required",
            "parallel_tool_calls": kind == "several",
            **sampling,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }

    def _append(self, turn: Turn) -> None:
        """The turn and a result of each of its calls, as clients send them back."""
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.whole_calls
        ]
        self.messages.append({"role": "assistant", "content": turn.text, "tool_calls": calls})
        for call in turn.whole_calls:
            result = f"{len(call.arguments)} {WORDS[len(self.messages) % len(WORDS)]}"
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def tool(rng: random.Random, name: str) -> dict[str, Any]:
    """A strict tool with a finite schema, of whose values the model draws."""
    bounds = sorted(rng.sample(range(-99, 1000), 2))
    values: dict[str, Any] = {
        "what": {"enum": rng.sample(WORDS, 5)},
        "far": {"type": "boolean"},
        "steps": {"type": "integer", "minimum": bounds[0], "maximum": bounds[1]},
        "how": {"enum": ["at once", 7, None, 'with "care" {}', True]},
    }
    names = rng.sample(sorted(values), len(values))
    schema = {
        "type": "object",
        "properties": {key: values[key] for key in names},
        "required": names,
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}


def follows(call: Call, tools: list[dict[str, Any]]) -> bool:
    """Whether a whole call has all arguments that its tool requires, each of a value that it allows."""
    [schema] = [each["function"]["parameters"] for each in tools if each["function"]["name"] == call.name]
    arguments = json.loads(call.arguments)
    return arguments.keys() == schema["properties"].keys() and all(
        _allows(schema["properties"][key], value) for key, value in arguments.items()
    )


def _allows(schema: dict[str, Any], value: Any) -> bool:
    if "enum" in schema:
        return any(value is known or (value == known and type(value) is type(known)) for known in schema["enum"])
    if schema["type"] == "boolean":
        return isinstance(value, bool)
    return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
