"""The requests that a worker has: how it refuses, takes, cancels and fails them, whatever its role.

Assign or PrefillJob --refused--> its sender is told
         | taken
         v
served --its last choice has ended--> finished
     \\--cancelled, failed, or all are dropped--> the role gives back what the request holds
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from protocol.errors import BadRequest, BatonError, QueueFull
from protocol.messages_gateway import Assign
from scheduler.planning.req import Req
from worker.policies import Policies
from worker.requests import Assigned, Key

A = TypeVar("A", bound=Assigned)
A_contra = TypeVar("A_contra", bound=Assigned, contravariant=True)


class Role(Protocol[A_contra]):
    """What prefill, decode and unified do differently with a request."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait for memory, or for what comes before it."""

    def admit(self) -> None:
        """Gives memory to requests that wait, in the order of their line, as long as there is room."""

    def ended(self, request: A_contra, error: BatonError | None) -> None:
        """The request is cancelled, or has failed with `error`, which its sender is told. No queue may keep it, and all
        that it holds is given back."""


class Served(Generic[A]):
    """The requests of one worker that have not ended."""

    def __init__(self, role: Role[A], policies: Policies) -> None:
        self.by_key: dict[Key, A] = {}
        self.of: dict[Req, A] = {}  # by each of their choices
        self._role, self._policies = role, policies

    def refusal(self, assign: Assign, fault: str | None, full: type[QueueFull] = QueueFull) -> BatonError | None:
        """Why a request that has come is not taken, or None. `fault`: why this worker can never serve it. `full`: the
        error if too many wait."""
        if fault is not None:
            return BadRequest(fault)
        if self._role.num_waiting >= self._policies.max_queued_requests:
            self._role.admit()  # many messages are read in one turn, and there may be room
        return self._policies.refusal(assign, self._role.num_waiting, full)

    def take(self, request: A) -> None:
        """Serves it from now on."""
        self.by_key[request.key] = request
        self.of.update(dict.fromkeys(request.reqs, request))

    def finish(self, req: Req) -> A:
        """The choice `req`, the last one of its request, has ended and holds nothing. Returns the request."""
        request = self.of[req]
        self._forget(request)
        return request

    def cancel(self, key: Key, choice: int = -1) -> list[Req]:
        """Cancels one choice of a request that may have ended, or all if `choice` is -1. Returns those that are
        cancelled now, if others of their request go on: the role gives back what they hold."""
        if (request := self.by_key.get(key)) is None:
            return []
        cancelled = request.cancel(choice)
        if not request.has_ended:
            return cancelled
        self.drop(request)
        return []

    def fail(self, request: A, error: BatonError) -> None:
        """Ends a request that cannot go on."""
        self._end(request, error)

    def fail_those(self, reqs: Sequence[Req], error: BatonError) -> None:
        """Fails the requests of these choices. Some may have ended, and a request may have several choices."""
        for req in reqs:
            if (request := self.of.get(req)) is not None:
                self.fail(request, error)

    def drop(self, request: A) -> None:
        """Ends a request without an error, because no process waits for it any more."""
        self._end(request, None)

    def drop_all(self) -> None:
        """Ends every request: the gateway has restarted and waits for nothing."""
        for request in list(self.by_key.values()):
            self.drop(request)

    def _end(self, request: A, error: BatonError | None) -> None:
        request.cancel()
        self._forget(request)
        self._role.ended(request, error)

    def _forget(self, request: A) -> None:
        del self.by_key[request.key]
        for req in request.reqs:
            del self.of[req]
