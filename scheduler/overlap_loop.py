"""The overlap loop: while the device runs one launch, the host processes the one before and prepares the next.

    step:  fewer than `depth` launches in flight?  choose the next batch and launch it
           the oldest launch has completed?        process its results

With overlap the depth is 2: a batch is chosen before the results of the launch in flight are known. Without overlap it
is 1. A step never blocks; the process loop polls sockets between steps.

A worker should end when its launches fail, but not if one request explains the failures:

    no failure --failed--> 1 --failed--> 2 --failed--> 3 or more, no request in all of them: broken
         ^------------------- a launch succeeds ------------------'
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from model.sampler import NOT_A_TOKEN
from protocol.errors import BatonError, InternalError, LaunchFailed, as_baton_error
from scheduler.engine import Engine, Launch
from scheduler.forward_batch import LaunchPlan
from scheduler.req import Req

TOO_MANY: Final = 3  # launches that fail in a row


class RoleSteps(Protocol):
    """What prefill, decode and unified each do differently."""

    def choose(self) -> LaunchPlan | None:
        """The next launch, or None if there is nothing to run. A launch may be in flight, its results unknown."""
        ...

    def launched(self, launch: Launch) -> None:
        """Called when the plan just chosen has been enqueued."""
        ...

    def process(self, launch: Launch, tokens: list[tuple[Req, int]]) -> None:
        """Takes the results of a completed launch. Requests that have finished meanwhile must be skipped."""
        ...

    def failed(self, reqs: Sequence[Req], error: BatonError) -> None:
        """Fails these requests: their launch raised, or drew no token for them. A request may appear twice."""
        ...


class OverlapLoop:
    """Drives one engine for one role."""

    def __init__(self, engine: Engine, role: RoleSteps, overlap: bool) -> None:
        self._engine = engine
        self._role = role
        self._depth = 2 if overlap else 1
        self._failures = LaunchFailures()
        self._last_error = ""

    @property
    def broken(self) -> str:
        """Why this worker cannot compute any more; "" while it can."""
        if not self._failures.is_broken:
            return ""
        return f"{self._failures.count} launches in a row have failed without a request in common: {self._last_error}"

    @property
    def busy(self) -> bool:
        """Whether a launch is in flight."""
        return bool(self._engine.in_flight)

    @property
    def oldest_launch(self) -> int:
        """The ticket of the oldest launch in flight; 0 when there is none."""
        return self._engine.in_flight[0].ticket if self._engine.in_flight else 0

    def step(self) -> bool:
        """Launches a batch and processes a completed one, where possible. False when there was nothing to do."""
        progressed = False
        if len(self._engine.in_flight) < self._depth and (plan := self._role.choose()) is not None:
            self._launch(plan)
            progressed = True

        if (launch := self._engine.take_completed()) is not None:
            if launch.error is not None:
                prompts = (chunk.req for chunk in launch.plan.chunks)
                self._fail([*prompts, *launch.batch.samples], launch.error)
            else:
                self._failures = LaunchFailures()
                tokens = self._engine.tokens(launch)
                if bad := [req for req, token in tokens if token == NOT_A_TOKEN]:
                    self._role.failed(bad, InternalError("the model's scores for the next token are not finite"))
                    tokens = [(req, token) for req, token in tokens if token != NOT_A_TOKEN]
                self._role.process(launch, tokens)
            progressed = True

        return progressed

    def _launch(self, plan: LaunchPlan) -> None:
        reqs = plan.reqs
        try:
            launch = self._engine.launch(plan)
        except Exception as error:  # noqa: BLE001 - a launch that cannot be built fails only its own requests
            self._fail(reqs, error)
        else:
            self._role.launched(launch)

    def _fail(self, reqs: Sequence[Req], error: Exception) -> None:
        """Fails the requests of a launch that raised. Another worker may serve them."""
        self._failures = self._failures.failed((req.request_id, req.attempt) for req in reqs)
        self._last_error = as_baton_error(error).message
        self._role.failed(reqs, LaunchFailed(self._last_error))


@dataclass(frozen=True)
class LaunchFailures:
    """The launches that have failed since the last success. An attempt is (request id, attempt number)."""

    count: int = 0
    common: frozenset[str] = frozenset()  # ids of the requests that were in all of these launches
    newest: frozenset[tuple[str, int]] = frozenset()  # the attempts of the last one

    def failed(self, attempts: Iterable[tuple[str, int]]) -> "LaunchFailures":
        """The failures after a launch with these attempts has failed.

        A launch does not count if all its attempts failed with the last one: it was in flight already.
        """
        now = frozenset(attempts)
        if now <= self.newest:
            return self
        ids = frozenset(request_id for request_id, _ in now)
        return LaunchFailures(self.count + 1, self.common & ids if self.count else ids, now)

    @property
    def is_broken(self) -> bool:
        """Whether TOO_MANY launches have failed in a row and no request was in all of them."""
        return self.count >= TOO_MANY and not self.common
