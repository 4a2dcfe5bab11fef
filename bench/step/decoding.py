"""A unified worker in this process whose requests all decode; the parts of bench.step and bench/gpu/ time it.

It reads the state of the rooms that it measures. The stream decides which device is used.
"""

import os
import random
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Protocol, TypeVar

import torch

from bench.rounds import in_rounds
from bench.step.kinds import GREEDY, Guests, Kind
from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.messages_gateway import TO_GATEWAY, RequestFailed
from runtime.clock import Clock
from scheduler.agreement import Agreement
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import FORWARD_NICENESS, HostStream, InlineStream, Segment, Stream
from scheduler.execution.thread_choice import wake_beside_layers
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.planner import Planner
from scheduler.planning.speculation import Speculation
from scheduler.speculation.modes import launches_for
from unified.worker import UnifiedWorker
from worker.policies import Policies

K = TypeVar("K", bound=Hashable)
PAGE_SIZE = 16
WARM_STEPS = 5
LEAD = 3  # launches of a round before the first that counts: two may be complete, the third fills the pipeline
EVERY_TOKEN = 1 << 20  # a chunk as long as any prompt


@dataclass(frozen=True)
class Plan:
    """How much is measured. `steps` are decode steps of one round."""

    context: int  # tokens of each prompt
    steps: int
    rounds: int

    @property
    def num_tokens(self) -> int:
        """Outputs of each request: more than are measured, so that none ends."""
        return WARM_STEPS + LEAD + (self.steps + LEAD) * self.rounds + 8

    @property
    def max_context(self) -> int:
        """The greatest length of a request, in tokens."""
        return self.context + self.num_tokens


class Idling(Stream, Protocol):
    """A forward stream of a worker that is measured."""

    def idle(self) -> None:
        """Waits a moment for the forward stream, if that helps the stream."""
        ...


class Replayed(Idling, Protocol):
    """A forward stream that can run its last launch again."""

    def replay(self, count: int) -> list[float]:
        """Runs the last launch `count` times. Returns the seconds of each."""
        ...


class ReplayedStream(HostStream):
    """A HostStream on chosen cores."""

    def __init__(self, cores: set[int], num_threads: int, clock: Clock) -> None:
        self._completed = threading.Event()  # set whenever the forward stream reaches an event
        super().__init__("forward", self._completed.set, FORWARD_NICENESS)
        self._clock = clock
        self._last: tuple[Sequence[Segment], tuple[Any, ...]] = ((), ())
        super().launch([lambda: pin(cores), lambda: torch.set_num_threads(num_threads)])

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Like HostStream's, and keeps the launch for `replay`."""
        self._last = (segments, used)
        super().launch(segments, *used)

    def replay(self, count: int) -> list[float]:
        """See Replayed."""
        segments, used = self._last
        times: list[float] = []

        def run() -> None:
            start = self._clock.now()
            for segment in segments:
                segment(*used)
            times.append(self._clock.now() - start)

        super().launch([run] * count)
        self.record().synchronize()
        return times

    def idle(self) -> None:
        """Waits for an event to be reached, or for `wake`, for 50 ms at most."""
        self._completed.wait(0.05)
        self._completed.clear()

    def wake(self) -> None:
        """Ends the wait of `idle`."""
        self._completed.set()


class AtOnce(InlineStream):
    """Runs launches at once, in this thread. It is a clock, too, which stands still meanwhile."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._spent_s = 0.0

    def now(self) -> float:
        """See Clock."""
        return self._now() - self._spent_s

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """See InlineStream."""
        start = self._now()
        super().launch(segments, *used)
        self._spent_s += self._now() - start

    def idle(self) -> None:
        """Does nothing: nothing is under way."""


@dataclass
class Decoding:
    """A unified worker whose requests all decode, one token a step."""

    worker: UnifiedWorker
    executor: Executor
    clock: Clock
    idle: Callable[[], None]
    guests: Guests | None = None
    host_s: float = 0.0  # of the last run: turns that did something, and encoding of their messages
    encode_s: float = 0.0  # of that, encoding

    @staticmethod
    def on(
        executor: Executor, stream: Idling, clock: Clock, *, overlap: bool, speculation: Speculation | None = None
    ) -> "Decoding":
        """A worker on the executor whose forward stream is `stream`. `speculation`: of the executor's draft."""
        planner = planner_of(executor, speculation)
        worker = UnifiedWorker(planner, "bench", clock, Policies(overlap, EVERY_TOKEN))
        return Decoding(worker, executor, clock, stream.idle)

    def start(
        self,
        batch: int,
        context: int,
        num_tokens: int,
        kind: Kind = GREEDY,
        others: Kind = GREEDY,
        num_of: int | None = None,
    ) -> None:
        """Starts requests of `context` random tokens that decode `num_tokens` more: the first `num_of` of `kind`, the
        rest of `others`. None: all are of `kind`."""
        rng, num_of = random.Random(0), batch if num_of is None else num_of
        for index in range(batch):
            prompt = tuple(rng.choices(range(self.worker.planner.vocab_size), k=context))
            self.worker.on_gateway((kind if index < num_of else others).assign(f"r{index}", prompt, num_tokens))

        self.until(lambda: self.num_running == batch)
        if kind.joins:
            self.guests = Guests(self.worker.on_gateway, kind, num_tokens)
        self.run(WARM_STEPS)

    @property
    def num_running(self) -> int:
        """Requests that decode."""
        return self.worker.stats().running

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets the worker go on until the condition holds."""
        while not condition():
            self._turn()

    def run(self, steps: int) -> float:
        """Mean seconds between the completions of two launches, over `steps` launches. Messages are encoded, as in a
        worker's loop."""
        wake_beside_layers(self.executor.runner, self.executor.device.forward)  # workers take turns with one runner
        first = self._num_completed + LEAD
        while self._num_completed < first:
            self._turn()
        self.host_s, self.encode_s, start = 0.0, 0.0, self.clock.now()
        while self._num_completed < first + steps:
            self._turn()
        return (self.clock.now() - start) / steps

    @property
    def _num_completed(self) -> int:
        return self.worker.planner.num_launches - len(self.worker.planner.in_flight)

    def _turn(self) -> None:
        start = self.clock.now()
        if self.guests is not None:
            self.guests.change(self.worker.planner.num_launches)
        progressed, stepped = self.worker.turn(), self.clock.now()
        for message in self.worker.outbox.gateway:
            assert not isinstance(message, RequestFailed), message
            TO_GATEWAY.encode(message)
        self.worker.outbox.gateway.clear()
        if progressed:
            self.host_s += self.clock.now() - start
            self.encode_s += self.clock.now() - stepped
        else:
            self.idle()


@dataclass(frozen=True)
class Times:
    """Milliseconds of one step, medians of rounds. Serial and host are None if no worker without overlap decodes."""

    forward: float  # the launches alone
    overlap: float
    serial: float | None = None
    host: float | None = None  # the host's part of a serial step


def timed(sides: Mapping[tuple[K, bool], tuple[Decoding, Replayed]], plan: Plan) -> dict[K, Times]:
    """All sides in turn, round by round; a side is a name, and whether its worker overlaps. After each round of a side
    its last launch is timed alone. By name."""

    def one_round(decoding: Decoding, stream: Replayed) -> tuple[float, float, float]:
        step_s = decoding.run(plan.steps)
        stream.record().synchronize()
        return step_s, decoding.host_s / plan.steps, median(stream.replay(plan.steps))

    rounds = in_rounds({side: partial(one_round, *stream) for side, stream in sides.items()}, plan.rounds)
    medians = {side: [median(seconds) * 1e3 for seconds in zip(*times, strict=True)] for side, times in rounds.items()}
    times = {}
    for name in dict.fromkeys(name for name, _ in sides):
        forward = median(ms for (own, _), (*_, ms) in medians.items() if own == name)
        times[name] = Times(forward, medians[name, True][0], *medians.get((name, False), ())[:2])
    return times


def executor_of(runner: Runner, batch: int, max_context: int, forward: Stream, **more: Any) -> Executor:
    """An executor with memory for `batch` requests of `max_context` tokens. `more`: see executor_on."""
    kv = PagedKv(runner.kv_layout(PAGE_SIZE), num_pages(runner, batch, max_context), runner.device)
    return executor_on(kv, runner, batch, max_context, forward, **more)


def num_pages(runner: Runner, batch: int, max_context: int) -> int:
    """Pages that `batch` requests need, and the padding page."""
    return 1 + batch * runner.kv_layout(PAGE_SIZE).num_pages(max_context)


def executor_on(
    kv: PagedKv,
    runner: Runner,
    batch: int,
    max_context: int,
    forward: Stream,
    schedule: Stream | None = None,
    *,
    shape: DraftShape = NO_DRAFT,
    **more: Any,
) -> Executor:
    """An executor on `kv`. `shape`: of its draft. `more`: the executor's grammars, if it has any, or its rank."""
    return Executor(
        runner,
        kv,
        num_rows=batch + 1,
        max_pages=kv.layout.num_pages(max_context),
        forward=forward,
        schedule=schedule or InlineStream(),
        launches=launches_for(runner.draft, shape),
        **more,
    )


def planner_of(
    executor: Executor, speculation: Speculation | None = None, agreement: Agreement | None = None
) -> Planner:
    """A planner that feeds the executor."""
    kv, (num_rows, max_pages) = executor.kv, executor.page_table.req_to_page.shape
    layout = kv.layout
    kv_manager = KvManager(
        kv.num_pages,
        layout.page_size,
        max_requests=num_rows - 1,
        max_context=max_pages * layout.page_size,
        lookahead=layout.lookahead,
    )
    vocab_size = executor.runner.config.vocab_size
    return Planner(kv_manager, executor, layout, vocab_size, speculation=speculation, agreement=agreement)


def pin(cores: set[int]) -> None:
    """Lets the calling thread run on `cores` only."""
    os.sched_setaffinity(0, cores)
