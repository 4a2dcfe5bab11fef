"""The requests of a soak run, and the verdict on each answer. Pure.

    exact     the known answer
    error     an OpenAI error instead of [DONE], 503 or 429; allowed if the tokens before it are right
    cut       the connection ended while the gateway was hit; allowed
    left      the client left; the tokens before that were right
    wrong     another token, another finish or another status
    lost      no end, or an end without an error

Faults are injected by faults.py.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import orjson

Answer = Mapping[int, tuple[tuple[int, ...], str]]  # by choice: token ids and finish reason
CLEAR_STATUSES = (429, 503)
WHOLE_STATUSES = (200, 0)  # 0: the connection broke just after the end


class Verdict(StrEnum):
    """The verdict on a request. The module's docstring lists them."""

    EXACT = "exact"
    ERROR = "error"
    CUT = "cut"
    LEFT = "left"
    WRONG = "wrong"
    LOST = "lost"


@dataclass(frozen=True)
class Ask:
    """One request. Its answer is the same with and without `stream`."""

    prompt: tuple[int, ...]
    max_tokens: int
    n: int
    temperature: float
    seed: int
    ignore_eos: bool

    def body(self, stream: bool) -> bytes:
        """The HTTP body."""
        nucleus = {"top_p": 0.95} if self.temperature else {}
        return orjson.dumps({**asdict(self), "return_token_ids": True, "stream": stream, **nucleus})


@dataclass(frozen=True)
class Turn:
    """One request of one client. `leave_after_s` is None for a client that stays. `pause`: how long it waits before, in
    means."""

    ask: Ask
    stream: bool
    leave_after_s: float | None
    pause: float = 0.0


@dataclass
class Heard:
    """The answer to one request. `status` 0: none came. `broken`: how the connection ended early."""

    status: int = 0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    error: Any = None
    done: bool = False
    broken: str = ""
    left: bool = False
    malformed: str = ""

    def stream_line(self, line: bytes) -> bool:
        """Takes one line of a stream."""
        if not line.startswith(b"data:"):
            if line.strip():
                self.whole_line(line)  # an error before the stream is a JSON body
            return True
        text = line[5:].strip()
        if self.done or self.error is not None:
            self.malformed = f"after its end: {text[:200]!r}"
        elif text == b"[DONE]":
            self.done = True
        else:
            self._take(text)
        return True

    def whole_line(self, line: bytes) -> bool:
        """Takes the body of an answer that is not streamed (JSON on one line)."""
        self._take(line)
        self.done = self.error is None and not self.malformed
        return True

    def _take(self, text: bytes) -> None:
        try:
            event = orjson.loads(text)
            if "error" in event:
                self.error = event["error"]
            for choice in event.get("choices", ()):
                self.tokens.setdefault(choice["index"], []).extend(choice["token_ids"])
                if choice["finish_reason"] is not None:
                    self.finishes[choice["index"]] = choice["finish_reason"]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.malformed = f"{type(error).__name__} in {text[:200]!r}"

    def answer(self) -> Answer:
        """The answer so far, for comparison with a known one."""
        return {choice: (tuple(ids), self.finishes.get(choice, "")) for choice, ids in self.tokens.items()}


def judge(heard: Heard, expected: Answer, gateway_was_hit: bool) -> tuple[Verdict, str]:
    """(the verdict, what happened if it is wrong or lost). `gateway_was_hit`: by a fault during this request."""
    told = f"status {heard.status}, error {heard.error}, broken {heard.broken!r}, got {heard.answer()} of {expected}"
    if heard.malformed:
        return Verdict.WRONG, heard.malformed
    if not all(choice in expected and _begins(ids, expected[choice][0]) for choice, ids in heard.tokens.items()):
        return Verdict.WRONG, told

    if heard.done:
        is_exact = heard.status in WHOLE_STATUSES and heard.answer() == expected
        return (Verdict.EXACT, "") if is_exact else (Verdict.WRONG, told)
    if heard.error is not None:
        return (Verdict.ERROR, "") if _is_clear(heard) else (Verdict.WRONG, told)
    if heard.left:
        return Verdict.LEFT, ""
    if heard.broken and gateway_was_hit:
        return Verdict.CUT, ""
    return Verdict.LOST, told


def _begins(ids: Sequence[int], expected: Sequence[int]) -> bool:
    return list(ids) == list(expected[: len(ids)])


def _is_clear(heard: Heard) -> bool:
    error = heard.error
    named = isinstance(error, dict) and all(isinstance(error.get(key), str) for key in ("message", "type", "code"))
    return named and heard.status in (*CLEAR_STATUSES, *WHOLE_STATUSES)  # 0 or 200: an error in mid-stream


def asks(seed: int, count: int, vocab: int) -> list[Ask]:
    """Requests of all sizes, greedy and sampled, with one choice or several."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        prompt = tuple(rng.choices(range(5, vocab), k=rng.choice((3, 20, 60, 150, 300))))
        temperature = 0.0 if number % 2 else rng.choice((0.7, 1.0))
        choices = rng.choice((1, 1, 1, 2, 3))
        ask = Ask(prompt, rng.choice((1, 8, 30, 80, 160)), choices, temperature, rng.getrandbits(31), number % 3 > 0)
        found.append(ask)
    return found


def turns(seed: int, known: Sequence[Ask], leaving: float) -> Iterator[Turn]:
    """Endless requests. A share of `leaving` of the clients leaves at a random time. Pauses are exponential, so that
    requests arrive at random."""
    rng = random.Random(seed)
    while True:
        leave_after_s = rng.uniform(0, 1.5) ** 2 if rng.random() < leaving else None
        yield Turn(rng.choice(known), rng.random() < 0.5, leave_after_s, rng.expovariate(1.0))
