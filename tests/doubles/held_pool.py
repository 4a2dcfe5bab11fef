"""A pool whose work is held until a test lets it go, one piece at a time."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class HeldPool(Executor):
    """`held`: the pieces of work that wait."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """A future that is not over."""
        future: Future[Any] = Future()
        self.held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def let_go(self) -> None:
        """Does the piece of work that has waited longest."""
        future, work = self.held.pop(0)
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - as in a thread: `result` raises it
            future.set_exception(error)
