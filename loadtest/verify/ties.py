"""The near tie: how far two right answers of a server may be apart, in natural logarithms. Pure.

A server may compute the same token in batches of other shapes, so its log-probabilities differ a little, and of two
tokens that are nearly equal now one is the likeliest and now the other. A quiet phase measures by how much. What its
first half shows, doubled, is `tau`; the second half must stay below that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from loadtest.verify.answers import Choice, Top, shared
from loadtest.verify.judge import Place, margin_between

FLOOR = 1e-3  # float32 in another order stays well below
LIMIT = 0.5  # a quiet server whose answers are further apart cannot be judged
MOST_TIED = 0.02  # of the tokens that are compared, on average
_STEPS = tuple(2.0**-power for power in range(11))  # of bfloat16 and float16, for logits of a usual size
_SAME_STEP = 2e-5  # log-probabilities are float32 themselves
_LARGE_SHARE = 0.8
_SAME_MEANING = 0.25


@dataclass(frozen=True)
class Noise:
    """What a quiet phase has shown of one oracle. `tau`: the near tie. `has_drift`: its log-probabilities are what the
    server claims. `why`: why it is of no use; empty if it is."""

    tau: float
    largest: float
    num: int
    has_drift: bool = True
    is_settled: bool = True
    why: str = ""


def differences(one: Choice, other: Choice) -> list[float]:
    """How far two answers to one request are apart at each place until they part, and there. inf: not told."""
    if not (one.has_logprobs and other.has_logprobs):
        return [] if one.tokens == other.tokens else [math.inf]
    same = shared(one.tokens, other.tokens)
    apart = [abs(a - b) for a, b in zip(one.logprobs[:same], other.logprobs[:same], strict=True)]
    if same < min(len(one.tokens), len(other.tokens)):
        apart.append(margin_between(one, other, same))
    return apart


def scored_differences(choice: Choice, scored: Sequence[Place]) -> tuple[list[float], list[float]]:
    """How far a greedy answer is from what scoring says: below the likeliest token, and from what was claimed."""
    places = scored[: len(choice.tokens)]
    margins = [score.largest - score.logprob for score in places]
    drifts = [abs(claimed - score.logprob) for claimed, score in zip(choice.logprobs, places, strict=False)]
    return margins, drifts


def noise_of(first: Sequence[float], second: Sequence[float], step: float) -> Noise:
    """The near tie, from differences of the two halves of a quiet phase. What is beyond LIMIT is no noise."""
    largest = max([*first, *second], default=0.0)
    if not all(value <= LIMIT for value in (*first, *second)):  # also nan
        told = f"answers of the quiet server differ by {largest:.3f}, more than {LIMIT}"
        return Noise(FLOOR, largest, len(first) + len(second), why=told)
    tau = max(FLOOR, 2 * step, 2 * max(first, default=0.0))
    is_settled = max(second, default=0.0) <= tau
    return Noise(tau if is_settled else 2 * largest, largest, len(first) + len(second), is_settled=is_settled)


def noise_of_scoring(margins: Sequence[Sequence[float]], drifts: Sequence[Sequence[float]], step: float) -> Noise:
    """The near tie of an oracle that scores, from known answers, one list each. Places beyond LIMIT are left to the
    verdicts on these answers: there the server contradicts itself."""
    told = [value for values in drifts for value in values]
    has_drift = bool(told) and median(told) <= _SAME_MEANING
    lists = [[*one, *(other if has_drift else ())] for one, other in zip(margins, drifts, strict=True)]
    halves = lists[: len(lists) // 2], lists[len(lists) // 2 :]
    first, second = ([value for values in half for value in values if value <= LIMIT] for half in halves)
    noise = noise_of(first, second, step)
    return replace(noise, has_drift=has_drift)


def step_of(tops: Sequence[Top]) -> float:
    """The step of the server's logits where they are large: 0.125 for bfloat16 between 16 and 32; 0 for float32.

    Two logits of a coarse type differ by a multiple of its step, and so do their log-probabilities."""
    steps = sorted(step for step in map(_step, tops) if step is not None)
    return steps[int(_LARGE_SHARE * (len(steps) - 1))] if steps else 0.0


def _step(top: Top) -> float | None:
    """The largest step of which all differences within one list are multiples. None: too few differ."""
    values = sorted(top.values(), reverse=True)
    apart = [values[0] - value for value in values[1:] if values[0] - value > _SAME_STEP]
    if len(apart) < 3:
        return None
    return next(
        (step for step in _STEPS if all(abs(math.remainder(distance, step)) < _SAME_STEP for distance in apart)), 0.0
    )


def too_many_ties(num_tied: int, num_tokens: int) -> str:
    """Why so many near ties are suspect; empty if they are not.

    A short run may have more by chance: up to three standard deviations of their number (Poisson)."""
    usual = MOST_TIED * num_tokens
    if num_tied <= usual + 3 * math.sqrt(usual) + 1:
        return ""
    return f"{num_tied} near ties in {num_tokens} tokens, more than {MOST_TIED:.0%} and chance"
