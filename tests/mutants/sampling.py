"""Draws generated mutants: each place that an operator breaks is as likely as any other."""

import random
from collections.abc import Callable, Sequence

from tests.mutants.generate import Function, Generated, mutant_of, num_edits


def sample(
    functions: Sequence[Function], num: int, seed: int, is_skipped: Callable[[Generated], bool]
) -> list[Generated]:
    """`num` mutants of `functions`, or all if there are fewer, without those that `is_skipped` names."""
    places = [(function, number) for function in functions for number in range(num_edits(function))]
    random.Random(seed).shuffle(places)
    drawn: list[Generated] = []
    for function, number in places:
        if len(drawn) == num:
            break
        mutant = mutant_of(function, number)
        if mutant is not None and not is_skipped(mutant):
            drawn.append(mutant)
    return sorted(drawn, key=lambda mutant: (mutant.path, mutant.line))
