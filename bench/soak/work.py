"""The requests of a soak run, and the verdict on each answer. Pure.

loadtest/verify/judge.py judges, against an answer that was learnt before and must come again to the letter. An error
must be one of those that Baton promises. Faults are injected by faults.py.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from loadtest.verify.answers import Answer, Ask, Heard
from loadtest.verify.judge import WHOLE_STATUSES, Judged, Verdict
from loadtest.verify.judge import judge as judge_answer

CLEAR_STATUSES = (429, 503)
BAD = (Verdict.WRONG, Verdict.TRUNCATED, Verdict.HUNG, Verdict.USAGE, Verdict.STREAM_DIFFERS)


def body_of(ask: Ask, stream: bool) -> bytes:
    """The HTTP body."""
    return orjson.dumps({**ask.fields(), "return_token_ids": True, "stream": stream})


@dataclass(frozen=True)
class Turn:
    """One request of one client. `leave_after_s` is None for a client that stays. `pause`: how long it waits before, in
    means."""

    ask: Ask
    stream: bool
    leave_after_s: float | None
    pause: float = 0.0


def judge(heard: Heard, expected: Answer, gateway_was_hit: bool) -> tuple[Verdict, str]:
    """(the verdict, what happened if it is bad). `gateway_was_hit`: by a fault during this request."""
    judged = judge_answer(heard, expected, is_excused=gateway_was_hit)
    if judged.verdict is Verdict.ERROR and not _is_clear(heard):
        judged = Judged(Verdict.WRONG, judged.why)
    return judged.verdict, judged.why if judged.verdict in BAD else ""


def _is_clear(heard: Heard) -> bool:
    error = heard.error
    named = isinstance(error, dict) and all(isinstance(error.get(key), str) for key in ("message", "type", "code"))
    return named and heard.status in (*CLEAR_STATUSES, *WHOLE_STATUSES)  # 0 or 200: an error in mid-stream


def asks(seed: int, count: int, vocab: int) -> list[Ask]:
    """Requests of all sizes, greedy and sampled, with one choice or several."""
    rng = random.Random(seed)
    drawn = []
    for number in range(count):
        prompt = tuple(rng.choices(range(5, vocab), k=rng.choice((3, 20, 60, 150, 300))))
        temperature = 0.0 if number % 2 else rng.choice((0.7, 1.0))
        choices = rng.choice((1, 1, 1, 2, 3))
        ask = Ask(prompt, rng.choice((1, 8, 30, 80, 160)), choices, temperature, rng.getrandbits(31), number % 3 > 0)
        drawn.append(ask)
    return drawn


def turns(seed: int, known: Sequence[Ask], leaving: float) -> Iterator[Turn]:
    """Endless requests. A share of `leaving` of the clients leaves at a random time. Pauses are exponential, so that
    requests arrive at random."""
    rng = random.Random(seed)
    while True:
        leave_after_s = rng.uniform(0, 1.5) ** 2 if rng.random() < leaving else None
        yield Turn(rng.choice(known), rng.random() < 0.5, leave_after_s, rng.expovariate(1.0))
