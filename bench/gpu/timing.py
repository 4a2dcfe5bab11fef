"""Times device work, and measures the device's limits: a copy of its memory and a matrix product.

On a device, events time the work after a warm-up; on a CPU, the clock. Figures are medians of repetitions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from scheduler.execution.streams import Segment
from scheduler.execution.streams_cuda import CudaStream

WARM_UP: Final = 3


def seconds_each(run: Callable[[], object], repeat: int, device: torch.device, warm_up: int = WARM_UP) -> list[float]:
    """Seconds of each of `repeat` runs, started without a pause."""
    for _ in range(warm_up):
        run()

    if device.type == "cpu":
        moments = [perf_counter()]
        for _ in range(repeat):
            run()
            moments.append(perf_counter())
        return [later - earlier for earlier, later in pairwise(moments)]

    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeat + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()

    events[-1].synchronize()
    return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(events)]


@dataclass(frozen=True)
class Limits:
    """What the device reached in this run, on random numbers."""

    copy_bytes_s: float  # bytes read plus bytes written
    product_flops_s: float  # for square bfloat16 matrices


def measured_limits(device: torch.device) -> Limits:
    """A copy far larger than any cache, and a product of 8192 x 8192 matrices; smaller ones on a CPU."""
    is_gpu = device.type == "cuda"
    side, repeat = (8192, 20) if is_gpu else (256, 3)
    copy_bytes_s, product_s = measured_copy_bytes_s(device), _product_s(side, repeat, device)
    if is_gpu:
        torch.cuda.empty_cache()
    return Limits(copy_bytes_s, 2 * side**3 / product_s)


def measured_copy_bytes_s(device: torch.device) -> float:
    """The bandwidth of a copy; see Limits."""
    is_gpu = device.type == "cuda"
    num_bytes, repeat = (4 << 30, 20) if is_gpu else (1 << 24, 3)
    copy_s = _copy_s(num_bytes, repeat, device)
    if is_gpu:
        torch.cuda.empty_cache()
    return 2 * num_bytes / copy_s


def _product_s(side: int, repeat: int, device: torch.device) -> float:
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    return median(seconds_each(lambda: left @ right, repeat, device))


def _copy_s(num_bytes: int, repeat: int, device: torch.device) -> float:
    source = torch.empty(num_bytes // 2, dtype=torch.int16, device=device).random_()
    target = torch.empty_like(source)
    return median(seconds_each(lambda: target.copy_(source), repeat, device))


class ReplayedCudaStream(CudaStream):
    """A forward stream on a device. See bench.overlap.decoding.Replayed."""

    def __init__(self, device: torch.device) -> None:
        self._own = torch.cuda.Stream(device)
        super().__init__(self._own)
        self._last: tuple[Sequence[Segment], tuple[Any, ...]] = ((), ())

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        """Like CudaStream's, and keeps the launch for `replay`."""
        self._last = (segments, used)
        super().launch(segments, *used)

    def replay(self, count: int) -> list[float]:
        """See Replayed. Device time from the end of one launch to the end of the next."""
        segments, used = self._last
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record(self._own)
        for event in events[1:]:
            super().launch(segments, *used)
            event.record(self._own)
        self.record().synchronize()
        return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(events)]

    def idle(self) -> None:
        """Does nothing, because a worker on a device polls."""
