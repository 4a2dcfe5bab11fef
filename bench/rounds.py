"""Sides that are compared take turns, so that a drift of the machine affects all alike; and figures of rounds."""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

from bench.records import Value
from loadtest.figures.distribution import number, percentile

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
RESAMPLES = 2000


def turns(sides: Iterable[T], rounds: int, warm_up: int = 0) -> Iterator[tuple[T, int]]:
    """Each side once a round, and the round's number; every second round begins with the last side. Rounds before round
    0 warm up, and do not count."""
    ordered = list(sides)
    for turn in range(-warm_up, rounds):
        for side in ordered if turn % 2 == 0 else ordered[::-1]:
            yield side, turn


def in_rounds(sides: Mapping[K, Callable[[], T]], rounds: int, warm_up: int = 0) -> dict[K, list[T]]:
    """The figures of each round, by side."""
    results: dict[K, list[T]] = {name: [] for name in sides}
    for name, turn in turns(sides, rounds, warm_up):
        result = sides[name]()
        if turn >= 0:
            results[name].append(result)
    return results


def spread(values: Sequence[float]) -> str:
    """The median and, of several values, the lowest and the highest."""
    middle = number(median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}-{number(max(values))})"


def ratios(ours: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Round by round, so that a drift of the machine cancels."""
    return [mine / other for mine, other in zip(ours, baseline, strict=True)]


def interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """Bounds that hold the median with a probability of `share`, by resampling (Efron's bootstrap)."""
    rng = random.Random(0)
    medians = [median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return percentile(medians, (1 - share) / 2), percentile(medians, (1 + share) / 2)


def compared(ours: Sequence[float], baseline: Sequence[float]) -> dict[str, Value]:
    """Cells of a row: the median ratio of the rounds, and its 95% interval."""
    of_rounds = ratios(ours, baseline)
    low, high = interval(of_rounds)
    return {"ratio": median(of_rounds), "95% interval": f"{low:.3f} to {high:.3f}"}
