"""The masks of late rows, made by one thread beside the launches, in slices. The grammars take turns, however many
rows each has; within a grammar its rows do.

    MakeMask --> waits --its turn--> a slice: outputs are read, then the mask is made --> MaskReady
                   ^------------------ outputs are left ------'

Reading keeps the interpreter to itself. So the thread rests behind each piece for as long as the piece has taken: the
other threads wait for one piece at most, and have half of the time.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from runtime.clock import Clock
from scheduler.execution.answers import Answer
from scheduler.plan import MaskReady, Owner

SLICE_S: Final = 0.02  # of reading, behind which others have their turn
PIECE_S: Final = 0.001  # of reading without a rest, or one output


@dataclass(frozen=True, eq=False)
class _Job:
    owner: Owner
    grammar: str
    answer: Answer


@dataclass(eq=False)
class LateMasks:
    """`pool` has the thread, `work` measures what it does, `rest` lets it rest for so many seconds. `wake` is called
    when a slice is over. All methods but `_slice` are called on the scheduler thread."""

    pool: Pool
    work: Clock
    rest: Callable[[float], object]
    wake: Callable[[], None]
    _lines: OrderedDict[str, deque[_Job]] = field(default_factory=OrderedDict)  # by grammar; the first one has its turn
    _running: "tuple[_Job, Future[bool]] | None" = None
    _is_dropped: bool = False  # the mask of the job that runs is for nobody

    def make(self, owner: Owner, grammar: str, answer: Answer) -> None:
        """Has the mask of a row made, whose answer is in no launch in flight."""
        self._add(_Job(owner, grammar, answer))
        self._go_on()

    def drop(self, owner: Owner) -> None:
        """Nobody waits for the mask of this row any more."""
        if self._running is not None and self._running[0].owner == owner:
            self._is_dropped = True
        for grammar, line in [*self._lines.items()]:
            self._lines[grammar] = kept = deque(job for job in line if job.owner != owner)
            if not kept:
                del self._lines[grammar]

    def made(self) -> list[MaskReady]:
        """The rows whose masks were made since the last call."""
        ready: list[MaskReady] = []
        while self._running is not None and self._running[1].done():
            (job, future), is_dropped = self._running, self._is_dropped
            self._running, self._is_dropped = None, False
            is_made = future.result()
            if is_made and not is_dropped:
                job.answer.is_late = False
                ready.append(MaskReady(*job.owner))
            elif not is_dropped:
                self._add(job)
            self._go_on()
        return ready

    def _add(self, job: _Job) -> None:
        self._lines.setdefault(job.grammar, deque()).append(job)

    def _go_on(self) -> None:
        """Gives the thread a slice of the row whose turn it is."""
        if self._running is not None or not self._lines:
            return
        grammar, line = self._lines.popitem(last=False)
        job = line.popleft()
        if line:
            self._lines[grammar] = line
        future = self.pool.submit(self._slice, job.answer)
        self._running = job, future
        future.add_done_callback(lambda _: self.wake())

    def _slice(self, answer: Answer) -> bool:
        """On the thread: reads what is unread, for SLICE_S at most. If all is read, it makes the mask, and says so."""
        spent_s = 0.0
        while answer.unread and spent_s < SLICE_S:
            took_s = answer.read(self.work, PIECE_S)
            self.rest(took_s)
            spent_s += took_s
        if answer.unread:
            return False
        answer.mask(self.work)
        return True
