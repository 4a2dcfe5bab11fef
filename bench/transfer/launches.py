"""Two ways to give a device the copies of all layers, so that the host's time and the device's can be told apart.

    together          one call, as a worker makes it for layers that are ready together
    layer by layer    a call for each layer, as each becomes ready

Each makes the plan anew, as a worker does for each request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Generic, Protocol, TypeVar

import torch

from testkit.device_on_host import HostCopies
from transfer.backends.cuda_ipc import CudaCopies
from transfer.in_place.device_pools import Copies, Moving
from transfer.plan import Copy, Extents

TOGETHER: Final = "together"
LAYER_BY_LAYER: Final = "layer by layer"
WAYS: Final = (TOGETHER, LAYER_BY_LAYER)
P = TypeVar("P", Copy, Extents)


@dataclass(frozen=True)
class Times:
    """Seconds of all layers. `wall`: until the host knows that all are done. `host`: until it has launched all.
    `device`: between events before the first kernel and behind the last one."""

    wall: float
    host: float
    device: float


class Queue(Copies, Protocol):
    """Copies that can be timed."""

    def timed(self, run: Callable[[], object]) -> Times:
        """Runs it once, and waits for what it has given to the device."""
        ...


class HostQueue(HostCopies):
    """See Queue. Everything is done at once, so the three times are one."""

    def timed(self, run: Callable[[], object]) -> Times:
        """See Queue."""
        start = perf_counter()
        run()
        seconds = perf_counter() - start
        return Times(seconds, seconds, seconds)


class CudaQueue(CudaCopies):
    """See Queue. Everything runs on the stream of CudaCopies."""

    def timed(self, run: Callable[[], object]) -> Times:
        """See Queue."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start = perf_counter()
        first.record(self._stream)
        run()
        last.record(self._stream)
        host = perf_counter() - start
        last.synchronize()
        return Times(perf_counter() - start, host, float(first.elapsed_time(last)) / 1e3)


class Ways(Generic[P]):
    """Both ways to launch what `begin(layers, plan)` launches. `make_plan` makes the same plan anew.

    `totals` are the sums of the layers.
    """

    def __init__(
        self, queue: Queue, begin: Callable[[range, P], Moving], make_plan: Callable[[], P], num_layers: int
    ) -> None:
        self._queue, self._num_layers = queue, num_layers
        self._begin: Callable[[range, P], Moving] = begin
        self._make_plan: Callable[[], P] = make_plan
        self.totals = self.sums()

    def timed(self, way: str) -> Times:
        """Runs everything once in this way, and checks the sums."""
        plan, moving = self._make_plan(), list[Moving]()
        times = self._queue.timed(lambda: moving.extend(self._begun(way, plan)))
        assert _sums(moving) == self.totals, "the sums of the same bytes differ"
        return times

    def sums(self) -> list[int]:
        """The sums of the layers, as they are now."""
        return _sums(self._begun(TOGETHER, self._make_plan()))

    def _begun(self, way: str, plan: P) -> list[Moving]:
        layers = range(self._num_layers)
        calls = [layers] if way == TOGETHER else [layers[at : at + 1] for at in layers]
        return [self._begin(call, plan) for call in calls]


def _sums(moving: Sequence[Moving]) -> list[int]:
    for moved in moving:
        moved.wait()
    return [total for moved in moving for total in moved.totals]
