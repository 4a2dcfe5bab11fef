"""Requests whose grammars are being compiled: they wait here, and no other request waits for them.

add -> held -> GrammarLearnt: taken, with the fault of its grammar if there is one
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from protocol.errors import GrammarFault
from scheduler.planning.planner import Planner
from worker.requests import Assigned

A = TypeVar("A", bound=Assigned)


class Learning(Generic[A]):
    """`requests`: all that the worker has."""

    def __init__(self, planner: Planner, requests: Callable[[], Iterable[Assigned]]) -> None:
        self._grammars, self._requests = planner.grammars, requests
        self._held: dict[A, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, request: A) -> None:
        """Has the request's grammar compiled, if it has one."""
        if name := request.assign.sampling.grammar:
            self._grammars.ask(name, request.assign.grammar, self._names)

    def hold(self, request: A) -> bool:
        """Keeps a request that waits for its grammar. False: nothing is to be waited for."""
        self.begin(request)
        if not request.assign.sampling.grammar:
            return False
        self._held[request] = None
        return True

    def drop(self, request: A) -> None:
        """It has ended."""
        self._held.pop(request, None)

    def is_over(self, request: A) -> bool:
        """Whether its grammar was compiled, or cannot be."""
        return self._grammars.is_learnt(request.assign.sampling.grammar)

    def fault(self, request: A) -> GrammarFault | None:
        """Why it cannot be served, once `is_over`."""
        reason = self._grammars.fault(request.assign.sampling.grammar)
        return GrammarFault(reason) if reason else None

    def settle(self, queue: Callable[[A], None], fail: Callable[[A, GrammarFault], None]) -> None:
        """Requests whose grammars are compiled by now wait for memory. One whose grammar cannot be compiled fails."""
        for request in self.take():
            if (fault := self.fault(request)) is not None:
                fail(request, fault)
            else:
                queue(request)

    def take(self) -> list[A]:
        """The requests that wait no longer. Each is returned once."""
        over = [request for request in self._held if self.is_over(request)]
        for request in over:
            del self._held[request]
        return over

    def _names(self) -> set[str]:
        return {request.assign.sampling.grammar for request in self._requests()}
