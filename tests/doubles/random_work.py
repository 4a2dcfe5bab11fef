"""A clock of work that a seed moves: what a piece of work takes is much, or nothing. No processor decides a test."""

import random
from typing import Final

MUCH_S: Final = 0.05


class RandomWork:
    """`chance` that the work between two looks takes MUCH_S."""

    def __init__(self, seed: int, chance: float) -> None:
        self._rng, self._chance, self._now = random.Random(f"work {seed}"), chance, 0.0

    def now(self) -> float:
        """Seconds of work, which may have grown since the last look."""
        self._now += MUCH_S if self._rng.random() < self._chance else 0.0
        return self._now
