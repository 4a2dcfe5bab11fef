"""One run of a load: begins conversations when they are due, keeps to the limits, and ends.

    due (arrivals) --> a free place? (--max-concurrency) --> turns, one after the other --> the place is free

The run ends when `num_conversations` have ended; or when `duration_s` is over or somebody calls `send_no_more`, and
those in flight have ended or had `grace_s`; or when somebody calls `stop`. Requests in flight then are unfinished.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.drive.events import Heard
from loadtest.drive.talk import Listener
from loadtest.figures.record import Record
from loadtest.figures.saturation import Look, saturation
from loadtest.work.conversations import Conversation
from runtime.clock import Clock

LOOK_S = 0.25
JUDGE_LOOKS = 8  # the queue is judged each 2 s


class Talks(Protocol):
    """Someone who can be talked to."""

    async def ask(self, conversation: Conversation, index: int, due_s: float) -> bool:
        """Sends a turn and hears its answer. Whether the conversation can go on."""
        ...


class Begin(Protocol):
    """Begins conversation `number` of a run that started at `start`."""

    def __call__(self, start: float, number: int, listener: Listener) -> Talks: ...


@dataclass(frozen=True)
class Plan:
    """What to send, and when. `is_open`: arrivals do not wait for answers, so that a queue may grow."""

    moments: Iterator[float]
    conversations: Iterator[Conversation]
    is_open: bool
    max_concurrency: int | None = None
    num_conversations: int | None = None
    duration_s: float | None = None
    grace_s: float = 30.0
    stops_when_saturated: bool = True


@dataclass
class Progress:
    """The run so far."""

    num_sent: int = 0
    num_began: int = 0  # conversations
    active: set[Heard] = field(default_factory=set)  # of the requests in flight
    num_tokens: int = 0  # of those that have ended
    records: list[Record] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)  # beside `records`, if answers are kept
    looks: list[Look] = field(default_factory=list)
    now_s: float = 0.0
    stopped_s: float | None = None  # when it was stopped before its end
    why: str = ""  # and why

    @property
    def in_flight(self) -> int:
        """Requests whose answers have not ended."""
        return len(self.active)


class Run:
    """One run. `progress` may be read at any time."""

    def __init__(self, plan: Plan, begin: Begin, clock: Clock, *, keeps: bool = False) -> None:
        self.progress = Progress()
        self._plan = plan
        self._begin = begin
        self._clock = clock
        self._keeps = keeps
        self._start = 0.0
        self._stop, self._is_closed = asyncio.Event(), asyncio.Event()
        self._talking: set[asyncio.Task[None]] = set()
        self._silent = asyncio.Event()  # nobody talks
        self._broken: BaseException | None = None  # a fault of our own
        self._places = asyncio.Semaphore(plan.max_concurrency) if plan.max_concurrency else None

    def stop(self, reason: str) -> None:
        """Ends the run: nothing more is sent, and what is in flight is unfinished."""
        if not self._stop.is_set():
            self.progress.why, self.progress.stopped_s = reason, self._now_s()
            self._stop.set()

    def send_no_more(self) -> None:
        """Nothing more is sent. What is in flight has the grace to end."""
        self._is_closed.set()

    async def run(self) -> Progress:
        """Runs to the end."""
        self._start = self._clock.now()
        waits = (self._send(), self._stop.wait(), self._is_closed.wait(), self._look())
        sending, stopping, closing, looking = map(asyncio.create_task, waits)
        try:
            await asyncio.wait({sending, stopping, closing}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            if not stopping.done():
                sending.cancel()
                await self._drain()
        finally:
            tasks = (sending, stopping, closing, looking, *self._talking)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._broken is not None:
            raise self._broken
        self.progress.now_s = self._now_s()
        return self.progress

    def _now_s(self) -> float:
        return self._clock.now() - self._start

    async def _send(self) -> None:
        """Begins each conversation when it is due and has a place."""
        plan = self._plan
        for number, (at_s, conversation) in enumerate(zip(plan.moments, plan.conversations, strict=False)):
            if number == plan.num_conversations or not await self._until(at_s):
                return
            if self._places is not None and not await self._has_place(self._places):
                return

            due_s = at_s if plan.is_open else self._now_s()
            task = asyncio.create_task(self._converse(number, conversation, due_s))
            self.progress.num_began += 1
            self._talking.add(task)
            task.add_done_callback(self._has_ended)
            await asyncio.sleep(0)  # let it send before the next one is begun

    async def _until(self, at_s: float) -> bool:
        """Waits for a moment. False if the time is over by then."""
        end_s = self._plan.duration_s
        if end_s is not None and (at_s >= end_s or self._now_s() >= end_s):
            await asyncio.sleep(max(0.0, end_s - self._now_s()))
            return False
        if (wait_s := at_s - self._now_s()) > 0:
            await asyncio.sleep(wait_s)
        return True

    async def _has_place(self, places: asyncio.Semaphore) -> bool:
        """Waits for a free place. False if the time is over before one is free."""
        if self._plan.duration_s is None:
            await places.acquire()
            return True
        try:
            async with asyncio.timeout(max(0.0, self._plan.duration_s - self._now_s())):
                await places.acquire()
        except TimeoutError:
            return False
        return True

    async def _converse(self, number: int, conversation: Conversation, due_s: float) -> None:
        talk = self._begin(self._start, number, self)
        try:
            for index, turn in enumerate(conversation.turns):
                if turn.think_s:
                    await asyncio.sleep(turn.think_s)
                if not await talk.ask(conversation, index, due_s if index == 0 else self._now_s()):
                    break
            if conversation.pause_s and not self._plan.is_open:
                await asyncio.sleep(conversation.pause_s)
        finally:
            if self._places is not None:
                self._places.release()

    def _has_ended(self, task: "asyncio.Task[None]") -> None:
        self._talking.discard(task)
        if not self._talking:
            self._silent.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self._stop.set()

    def began(self, heard: Heard) -> None:
        """A request is sent."""
        self.progress.num_sent += 1
        self.progress.active.add(heard)

    def ended(self, record: Record, heard: Heard) -> None:
        """Its answer has ended, or failed."""
        self.progress.active.discard(heard)
        self.progress.num_tokens += record.num_tokens
        self.progress.records.append(record)
        if self._keeps:
            self.progress.heard.append(heard)

    async def _drain(self) -> None:
        """Waits for those in flight: to their end, or for the grace if the run has a duration or was closed, or until a
        stop."""
        has_grace = self._plan.duration_s is not None or self._is_closed.is_set()
        grace_s = self._plan.grace_s if has_grace else None
        self._silent.clear()
        if not self._talking:
            return
        ends = [asyncio.create_task(event.wait()) for event in (self._silent, self._stop)]
        await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    async def _look(self) -> None:
        """Looks at the queue, and stops the run if it grows without bound."""
        is_judged = self._plan.is_open and self._plan.stops_when_saturated and self._plan.max_concurrency is None
        while True:
            now_s, progress = self._now_s(), self.progress
            progress.now_s = now_s
            progress.looks.append(Look(now_s, progress.num_sent, progress.in_flight))
            is_due = is_judged and len(progress.looks) % JUDGE_LOOKS == 0
            if is_due and (reason := saturation(progress.looks, progress.records)):
                self.stop(reason)
                return
            await asyncio.sleep(LOOK_S)
