"""Failures for the test: forwards that raise, collectives that break, launches that cannot be built. Notes who is hit.

A failure of a launch fails the requests in it. If it breaks a group, they go on elsewhere, so none is hit.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

from model.inputs import ModelInput
from protocol.messages_group import StepShape
from scheduler.execution.answers import Masking
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.executor import Executor
from scheduler.execution.launch import Launch
from scheduler.execution.launches import Launches
from scheduler.plan import Plan
from scheduler.speculation.draft_launches import DraftLaunch, DraftLaunches
from tests.doubles.collectives_simulated import Tag

INJECTED = "a failure for the test"
MOST = 4  # forwards that fail in a run with groups, each of which begins all its requests again


def wrap_segments(
    launcher: Launches, drafting: str, plain: str, around: Callable[[Callable[[Launch], None], Launch], None]
) -> None:
    """`around` is called in the place of the segment called `drafting` of launches with a draft, and of the one called
    `plain` of others. It is given the segment and the launch."""
    owners = (
        [(launcher.plain, plain), (launcher, drafting)] if isinstance(launcher, DraftLaunches) else [(launcher, plain)]
    )
    for owner, name in owners:
        segment = getattr(owner, name)
        vars(owner)[name] = wraps(segment)(partial(around, segment))


class Failures:
    """`failing`: how likely a forward raises. `unbuilt`: how likely a launch cannot be built."""

    def __init__(self, seed: int, failing: float, unbuilt: float, *, is_grouped: bool) -> None:
        self.is_grouped = is_grouped
        self.num_failed = 0  # launches
        self.num_unbuilt = 0
        self.hit: set[str] = set()  # requests that were in a failed launch
        self.breaks_group: Callable[[Executor], bool] = lambda executor: False  # asked when a forward fails
        self._failing, self._unbuilt = failing, unbuilt
        self._rng, self._builds = random.Random(f"failures {seed}"), random.Random(f"builds {seed}")
        self._at = threading.local()  # of the launch whose forward runs in this thread: see `computing`

    def before_forward(self, inp: ModelInput) -> None:
        """On the forward stream: at random, the launch fails."""
        if self._rng.random() >= self._failing or (self.is_grouped and self.num_failed == MOST):
            return
        self.num_failed += 1
        executor: Executor = self._at.executor
        if not self.breaks_group(executor):
            self.hit |= self._at.members
        elif place := self._rng.randrange(2 * executor.runner.config.num_layers):
            self._at.breaks_at = place
            return
        raise RuntimeError(INJECTED)

    def before_call(self, rank: int, tag: Tag) -> None:
        """A rank is about to enter a collective: it may break in the middle of a forward."""
        if self._at.breaks_at is not None and self._at.breaks_at <= tag.call:
            self._at.breaks_at = None
            raise RuntimeError(INJECTED)

    @contextmanager
    def computing(self, executor: Executor, members: set[str]) -> Iterator[None]:
        """While the forward of a launch with these requests runs, which may break at a collective."""
        self._at.executor, self._at.members, self._at.breaks_at = executor, members, None
        yield

    def watch(self, executor: Executor, members_of: Callable[[int], set[str]]) -> None:
        """Launches of this executor cannot be built at random. `members_of` tells the requests of a ticket."""
        if not self._unbuilt:
            return
        launcher, device = executor.launcher, executor.device
        enqueue = launcher.enqueue

        def enqueued(plan: Plan, running: ScheduleBatch, step: StepShape, masking: Masking | None) -> Launch:
            places: list[tuple[Any, str]] = [(running, "check_mirrors")]
            places += [(launcher._shipping, "prepare")] if plan.ships else []  # type: ignore[attr-defined]
            has_mode = isinstance(launcher, DraftLaunches) and plan.drafts
            places += [(launcher._mode(plan), "build")] if has_mode else []  # type: ignore[attr-defined]
            with self._maybe(places, members_of(plan.ticket)):
                return enqueue(plan, running, step, masking)

        vars(launcher)["enqueue"] = enqueued

        def begun(segment: Callable[[Launch], None], launch: Launch) -> None:
            places: list[tuple[Any, str]] = [] if launch.batch is None else [(device.future_map, "resolve_future")]
            places += [(launch.mode, "propose")] if isinstance(launch, DraftLaunch) and launch.batch else []
            with self._maybe(places, members_of(launch.ticket)):
                segment(launch)

        wrap_segments(launcher, "propose", "resolve", begun)

    @contextmanager
    def _maybe(self, places: list[tuple[Any, str]], members: set[str]) -> Iterator[None]:
        """At random, one of these methods raises."""
        if not places or self._builds.random() >= self._unbuilt:
            yield
            return
        owner, name = self._builds.choice(places)

        def fails(*args: Any, **more: Any) -> None:
            self.num_unbuilt += 1
            self.hit.update(members)
            raise RuntimeError(INJECTED)

        vars(owner)[name] = fails
        try:
            yield
        finally:
            del vars(owner)[name]
