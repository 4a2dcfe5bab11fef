"""The overlap loop: while the device runs one launch, the host processes the one before and prepares the next.

    turn:  the oldest launch has completed?        process its results
           fewer than `depth` launches in flight?  plan the next one and launch it
           no work, and other ranks wait?          launch an idle batch

With overlap the depth is 2: a launch is planned before the results of the one in flight are known. Without overlap it
is 1. A turn never blocks; the process loop polls sockets between turns.

A worker should end when its launches fail, but not if one request explains the failures:

    no failure --failed--> 1 --failed--> 2 --failed--> 3 or more, no request in all of them: broken
         ^------------------- a launch succeeds ------------------'
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.errors import BatonError, GrammarFault, InternalError, LaunchFailed
from scheduler.plan import StepResult
from scheduler.planning.launched import Drawn, Launched
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req

TOO_MANY: Final = 3  # launches that fail in a row


class RoleSteps(Protocol):
    """What prefill, decode and unified each do differently."""

    def launch(self) -> bool:
        """Launches what runs next. False if there is nothing. A launch may be in flight, its results unknown."""
        ...

    def process(self, launched: Launched, drawn: Drawn) -> None:
        """Takes the tokens of a completed launch: those of choices that have not ended meanwhile."""
        ...

    def failed(self, reqs: Sequence[Req], error: BatonError) -> None:
        """Fails these requests: their launch raised, or drew no token for them. A request may appear twice."""
        ...


class OverlapLoop:
    """Drives one planner for one role."""

    def __init__(self, planner: Planner, role: RoleSteps, overlap: bool) -> None:
        self._planner = planner
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
        """Whether a launch is in flight, or a choice is in host memory and resumes when there is room."""
        return bool(self._planner.in_flight or self._planner.spills.away)

    @property
    def oldest_launch(self) -> int:
        """The ticket of the oldest launch in flight; 0 when there is none."""
        return self._planner.in_flight[0].ticket if self._planner.in_flight else 0

    def turn(self) -> bool:
        """Processes what is over and launches what runs next, where possible. False when there was nothing to do."""
        planner, num_told = self._planner, self._planner.num_told
        over = planner.poll()
        for launched, result in over:
            self._process(launched, result)
        planner.late.ask(planner.in_flight)
        progressed = planner.collect() or bool(over) or planner.num_told > num_told  # requests wait for what is told

        if len(planner.in_flight) < self._depth:
            progressed |= self._role.launch() or planner.launch_idle_batch()
        return progressed

    def _process(self, launched: Launched, result: StepResult) -> None:
        if result.error:
            self._failures = self._failures.failed(req.key for req in launched.reqs)
            self._last_error = result.error
            self._role.failed(launched.reqs, LaunchFailed(result.error))  # another worker may serve them
            return

        if self._failures.count and launched.reqs:  # one without requests proves nothing
            self._failures = LaunchFailures()
        drawn = self._planner.results.take(launched, result)
        if result.late:
            late = self._planner.results.holders(result.late)
            self._planner.sit_out(late)
            drawn = [(req, run) for req, run in drawn if req not in late]
        if not result.not_finite and not result.stuck:
            self._role.process(launched, drawn)
            return
        bad = self._without_token(result)
        self._fail({req: bad[req] for req, run in drawn if not run and req in bad})
        self._role.process(launched, [(req, run) for req, run in drawn if req.holding is not None])
        self._fail({req: error for req, error in bad.items() if req.finish is None})  # others have ended before

    def _without_token(self, result: StepResult) -> dict[Req, BatonError]:
        """The choices for which the launch has drawn no token, each with the reason."""
        holders = self._planner.results.holders
        bad: dict[Req, BatonError] = {}
        for req in holders(result.not_finite):
            bad[req] = InternalError("the model's scores for the next token are not finite")
        for owner, reason in result.stuck:
            bad |= dict.fromkeys(holders([owner]), GrammarFault(reason))
        return bad

    def _fail(self, bad: Mapping[Req, BatonError]) -> None:
        for req, error in bad.items():
            self._role.failed([req], error)


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
