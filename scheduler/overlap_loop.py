"""The overlap loop: while the device runs one launch, the host processes the one before and prepares the next.

    step:  fewer than `depth` launches in flight?  choose the next batch and launch it
           the oldest launch has completed?        process its results

With overlap the depth is 2: a batch is chosen before the results of the launch in flight are known. Without overlap it
is 1. A step never blocks; the process loop polls sockets between steps.
"""

from collections.abc import Sequence
from typing import Protocol

from model.sampler import NOT_A_TOKEN
from protocol.errors import BatonError, InternalError, LaunchFailed, as_baton_error
from scheduler.engine import Engine, Launch
from scheduler.forward_batch import LaunchPlan
from scheduler.launch_failures import LaunchFailures
from scheduler.req import Req


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
