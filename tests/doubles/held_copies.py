"""A device whose copies take as long as a test wants."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from torch import Tensor

from testkit.device_on_host import HostCopies, Moved
from transfer.in_place.device_pools import Moving, Tiles


@dataclass(eq=False)
class Held:
    """A copy that a device has been given and not begun; it begins when somebody has looked often enough."""

    run: Callable[[], Moved]
    finish: Callable[["Held"], None]
    looks_left: float
    result: Moved | None = None

    @property
    def done(self) -> bool:
        self.looks_left -= 1
        if self.result is None and self.looks_left <= 0:
            self.finish(self)
        return self.result is not None

    def wait(self) -> None:
        if self.result is None:
            self.finish(self)

    @property
    def totals(self) -> Sequence[int]:
        assert self.result is not None, "nobody may ask before it is done"
        return self.result.totals


class HeldCopies:
    """A device that does the next copy when it is told, or when somebody has looked `looks` times; and all that came
    before one that is waited for. It counts the words of the copies that it has done."""

    def __init__(self, looks: float = inf) -> None:
        self.queue: deque[Held] = deque()
        self.num_finished = 0
        self.words_written = 0
        self.words_read = 0
        self._looks = looks

    def begin(self, source_LW: Tensor, target_LW: Tensor | None, tiles: Tiles) -> Moving:
        run = partial(self._run, source_LW, target_LW, tiles)
        self.queue.append(Held(run, self._finish, self._looks))
        return self.queue[-1]

    def step(self) -> None:
        held = self.queue.popleft()
        held.result = held.run()

    def _run(self, source_LW: Tensor, target_LW: Tensor | None, tiles: Tiles) -> Moved:
        num_words = source_LW.shape[0] * len(tiles.sources_U) * tiles.num_words
        if target_LW is None:
            self.words_read += num_words
        else:
            self.words_written += num_words
        return HostCopies().begin(source_LW, target_LW, tiles)

    def _finish(self, held: Held) -> None:
        self.num_finished += 1
        while held.result is None:
            self.step()
