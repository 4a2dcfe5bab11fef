"""One request, and its answer as it was heard: tokens, their log-probabilities, text, usage, and how it ended. Pure.

A token is an id where the server tells ids, else its text; where it tells neither, a character of the text.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

Token = int | str
Top = Mapping[Token, float]  # the likeliest tokens of one place, with their log-probabilities
_ID = "token_id:"


@dataclass(frozen=True)
class Ask:
    """One request. Its answer is the same with and without `stream`."""

    prompt: tuple[int, ...]
    max_tokens: int
    n: int = 1
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = True

    def fields(self) -> dict[str, Any]:
        """The fields of the HTTP body that say what is asked."""
        fields = {"prompt": self.prompt, "max_tokens": self.max_tokens, "n": self.n}
        fields |= {"temperature": self.temperature, "seed": self.seed, "ignore_eos": self.ignore_eos}
        return {**fields, "top_p": 0.95} if self.temperature else fields


@dataclass(frozen=True)
class Choice:
    """One choice of an answer. `logprobs` and `tops` are empty, or have an entry for each token."""

    tokens: tuple[Token, ...]
    finish: str = ""
    text: str = ""
    logprobs: tuple[float, ...] = ()
    tops: tuple[Top, ...] = ()

    @property
    def has_logprobs(self) -> bool:
        """Whether each token has a log-probability and a list of the likeliest."""
        return len(self.logprobs) == len(self.tops) == len(self.tokens)

    def after(self, index: int) -> "Choice":
        """The answer to a prompt that has the first `index` tokens already. Its text is not known."""
        if not index:
            return self
        return Choice(self.tokens[index:], self.finish, "", self.logprobs[index:], self.tops[index:])

    def before(self, index: int) -> "Choice":
        """Its first `index` tokens. Their text is not known."""
        if index >= len(self.tokens):
            return self
        return Choice(self.tokens[:index], self.finish, "", self.logprobs[:index], self.tops[:index])


Answer = Mapping[int, Choice]


@dataclass
class Heard:
    """The answer to one request. `status` 0: none came. `broken`: how the connection ended early. `leave_after`: the
    client leaves when it has so many tokens."""

    status: int = 0
    tokens: dict[int, list[Token]] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    error: Any = None
    done: bool = False
    broken: str = ""
    is_late: bool = False  # it had not ended in time
    left: bool = False
    malformed: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    is_stream: bool = False
    leave_after: int | None = None
    first_s: float | None = None  # from the request to its first token
    took_s: float = 0.0
    _texts: dict[int, str] = field(default_factory=dict)
    _logprobs: dict[int, list[float]] = field(default_factory=dict)
    _tops: dict[int, list[Top]] = field(default_factory=dict)

    def stream_line(self, line: bytes) -> bool:
        """Takes one line of a stream. False when the client leaves."""
        if not line.startswith(b"data:"):
            if line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                self.whole_line(line)  # an error before the stream is a JSON body
            return True
        text = line[5:].strip()
        self.is_stream = True
        if self.done or self.error is not None:
            self.malformed = f"after its end: {text[:200]!r}"
        elif text == b"[DONE]":
            self.done = True
        else:
            self._take(text)
        if self.leave_after is not None and not self.done and self.num_tokens >= self.leave_after:
            self.left = True
        return not self.left

    def whole_line(self, line: bytes) -> bool:
        """Takes the body of an answer that is not streamed (JSON on one line)."""
        self._take(line)
        self.done = self.error is None and not self.malformed
        return True

    @property
    def num_tokens(self) -> int:
        """Tokens that have come, of all choices."""
        return sum(map(len, self.tokens.values()))

    def answer(self) -> Answer:
        """The answer so far, for comparison with a known one."""
        return {choice: self._choice(choice) for choice in self.tokens}

    def _choice(self, index: int) -> Choice:
        logprobs, tops = self._logprobs.get(index, ()), self._tops.get(index, ())
        text, finish = self._texts.get(index, ""), self.finishes.get(index, "")
        return Choice(tuple(self.tokens[index]), finish, text, tuple(logprobs), tuple(tops))

    def _take(self, text: bytes) -> None:
        try:
            event = orjson.loads(text)
            if "error" in event:
                self.error = event["error"]
            self.usage = event.get("usage") or self.usage
            for choice in event.get("choices", ()):
                self._take_choice(choice["index"], choice)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.malformed = f"{type(error).__name__} in {text[:200]!r}"

    def _take_choice(self, index: int, choice: Mapping[str, Any]) -> None:
        text = choice.get("text") or ""
        tokens = choice.get("token_ids")
        if told := choice.get("logprobs"):
            named = [as_token(token) for token in told["tokens"]]
            tokens = named if tokens is None or not named or isinstance(named[0], int) else tokens
            if named and isinstance(tokens[0], type(named[0])):
                self._logprobs.setdefault(index, []).extend(map(_as_float, told["token_logprobs"]))
                self._tops.setdefault(index, []).extend(map(top_of, told.get("top_logprobs") or ()))
        self.tokens.setdefault(index, []).extend(text if tokens is None else tokens)
        self._texts[index] = self._texts.get(index, "") + text
        if choice["finish_reason"] is not None:
            self.finishes[index] = choice["finish_reason"]


def as_token(text: str) -> Token:
    """The id in `token_id:5`, else the text."""
    return int(text[len(_ID) :]) if text.startswith(_ID) else text


def top_of(told: Mapping[str, float] | None) -> Top:
    """The likeliest tokens of one place."""
    return {as_token(text): _as_float(value) for text, value in (told or {}).items()}


def _as_float(value: float | None) -> float:
    return math.nan if value is None else float(value)


def shared(one: Sequence[Token], other: Sequence[Token]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
