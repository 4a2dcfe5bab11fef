"""Ways to give a device the copies of all layers, so that the host's time and the device's can be told apart.

    new plan      a call for each layer, as a worker makes it for each request: the first one makes the table of units
    known plan    the same calls again: the table is on the device already
    prepared      the kernels alone: their arguments and sums are made before
    graph         these kernels captured as one CUDA graph

On a CPU torch copies at once, and the prepared copies stand in for a graph.
Shapes: W words of a layer, U units, M moves, S sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from testkit.device_on_host import HostCopies
from transfer.backends.cuda_ipc import CudaCopies
from transfer.in_place.device_pools import Copies, Moving, Units
from transfer.plan import Copy, Runs

NEW_PLAN: Final = "new plan"
KNOWN_PLAN: Final = "known plan"
PREPARED: Final = "prepared"
GRAPH: Final = "graph"
WAYS: Final = (NEW_PLAN, KNOWN_PLAN, PREPARED, GRAPH)
Run = Callable[[], object]
P = TypeVar("P", Copy, Runs)


@dataclass(frozen=True)
class Times:
    """Seconds of all layers. `wall`: until the host knows that all are done. `host`: until it has launched all.
    `device`: between events before the first kernel and behind the last one."""

    wall: float
    host: float
    device: float


@dataclass(frozen=True, eq=False)
class Move:
    """The arguments of Copies.begin for one layer."""

    source_W: Tensor
    target_W: Tensor | None
    units: Units


class Queue(Copies, Protocol):
    """Copies whose launches can be prepared and timed."""

    def prepared(self, moves: Sequence[Move]) -> Run:
        """These moves, with everything made that can be made before. They do not tell their sums."""
        ...

    def captured(self, run: Run) -> Run:
        """What `run` has launched, as one graph. `run` has run before."""
        ...

    def timed(self, run: Run) -> Times:
        """Runs it once, and waits for it."""
        ...


class HostQueue(HostCopies):
    """See Queue. Everything is done at once, so the three times are one."""

    def prepared(self, moves: Sequence[Move]) -> Run:
        """See Queue."""
        return lambda: [self.begin(each.source_W, each.target_W, each.units) for each in moves]

    def captured(self, run: Run) -> Run:
        """`run` itself, in the place of a graph."""
        return run

    def timed(self, run: Run) -> Times:
        """See Queue."""
        start = perf_counter()
        run()
        seconds = perf_counter() - start
        return Times(seconds, seconds, seconds)


class CudaQueue(CudaCopies):
    """See Queue. Everything runs on the stream of CudaCopies."""

    def prepared(self, moves: Sequence[Move]) -> Run:
        """See Queue. The sums are zeroed by one more kernel."""
        with torch.cuda.stream(self._stream):
            tables = [self._table(each.units) for each in moves]
            sums_MS = torch.zeros(len(moves), self._kernel.NUM_SUMS, dtype=torch.int64, device=self._device)

        def run() -> None:
            with torch.cuda.stream(self._stream):
                sums_MS.zero_()
                for each, table_2U, sums_S in zip(moves, tables, sums_MS, strict=True):
                    self._kernel.launch(each.source_W, each.target_W, table_2U, each.units.num_words, sums_S)

        return run

    def captured(self, run: Run) -> Run:
        """See Queue."""
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            run()

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        return replay

    def timed(self, run: Run) -> Times:
        """See Queue."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start = perf_counter()
        first.record(self._stream)
        run()
        last.record(self._stream)
        host = perf_counter() - start
        last.synchronize()
        return Times(perf_counter() - start, host, float(first.elapsed_time(last)) / 1e3)


class Noted:
    """Copies that note what they are given, so that it can be launched in other ways."""

    def __init__(self, copies: Copies) -> None:
        self.moves: list[Move] = []
        self._copies = copies

    def begin(self, source_W: Tensor, target_W: Tensor | None, units: Units) -> Moving:
        """See Copies."""
        self.moves.append(Move(source_W, target_W, units))
        return self._copies.begin(source_W, target_W, units)


class Ways(Generic[P]):
    """All ways to launch what `begin(layer, plan)` launches for each layer. `make_plan` makes the same plan anew.

    `begin` gives `noted` what it launches. `totals` are the sums of the layers.
    """

    def __init__(
        self,
        queue: Queue,
        noted: Noted,
        begin: Callable[[int, P], Moving],
        make_plan: Callable[[], P],
        num_layers: int,
    ) -> None:
        self._queue, self._num_layers = queue, num_layers
        self._begin: Callable[[int, P], Moving] = begin
        self._make_plan: Callable[[], P] = make_plan
        self._known: P = make_plan()
        noted.moves.clear()
        self.totals = self._sums(self._known)
        self._moves = noted.moves[:]
        self._runs: dict[str, Run] = {}

    def timed(self, way: str) -> Times:
        """Runs everything once in this way. For the first two ways it checks the sums."""
        if way not in (NEW_PLAN, KNOWN_PLAN):
            return self._queue.timed(self._run(way))
        plan = self._make_plan() if way == NEW_PLAN else self._known
        moving: list[Moving] = []
        times = self._queue.timed(lambda: moving.extend(self._begun(plan)))
        found = [each.total for each in moving]
        assert found == self.totals, "the sums of the same bytes differ"
        return times

    def sums(self) -> list[int]:
        """The sums of the layers, as they are now."""
        return self._sums(self._known)

    def _run(self, way: str) -> Run:
        """What is prepared for this way. It has run once."""
        if way not in self._runs:
            run = self._queue.captured(self._run(PREPARED)) if way == GRAPH else self._queue.prepared(self._moves)
            self._queue.timed(run)
            self._runs[way] = run
        return self._runs[way]

    def _begun(self, plan: P) -> list[Moving]:
        return [self._begin(layer, plan) for layer in range(self._num_layers)]

    def _sums(self, plan: P) -> list[int]:
        moving = self._begun(plan)
        for each in moving:
            each.wait()
        return [each.total for each in moving]
