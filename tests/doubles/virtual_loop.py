"""An event loop whose time jumps to the next timer: what takes minutes takes milliseconds, and exactly its time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waits for nothing. Made for code without sockets: `time` moves only when all tasks wait for timers."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._virtual_s

    def now(self) -> float:
        """The same, so that the loop is a Clock."""
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Moves forward."""
        self._virtual_s += seconds


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits, and for no timer"
        self._loop.jump(max(0.0, timeout))
        return super().select(0)


def run_virtually(job: "Coroutine[Any, Any, T]", loop: VirtualLoop) -> T:
    """Runs `job` on `loop`, which is closed afterwards."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(job)
