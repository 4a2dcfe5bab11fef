"""A pool whose work is over when a seed says so: each look at a future may be the one that finds it done."""

import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

MOST_LOOKS = 25  # at one future: what waits for longer waits for something else


class LatePool(Executor):
    """`chance` that a look finds the work done. The work runs within that look, on the caller's thread."""

    def __init__(self, seed: int, chance: float) -> None:
        self._rng, self._chance = random.Random(f"late {seed}"), chance
        self.num_looks = 0  # each brings the end of a work nearer

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """A future that is not over yet."""
        return _LateFuture(lambda: fn(*args, **kwargs), self._is_time)

    def _is_time(self) -> bool:
        self.num_looks += 1
        return self._rng.random() < self._chance


class _LateFuture(Future[Any]):
    def __init__(self, work: Callable[[], Any], is_time: Callable[[], bool]) -> None:
        super().__init__()
        self._work, self._is_time = work, is_time
        self._num_looks = 0

    def done(self) -> bool:
        if not super().done():
            self._num_looks += 1
            if self._is_time() or self._num_looks == MOST_LOOKS:
                self.set_result(self._work())
        return super().done()
