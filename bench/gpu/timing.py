"""Times device work, and measures the device's limits: a copy of its memory and a matrix product.

On a device, events time the work after a warm-up; on a CPU, the clock. Figures are medians of repetitions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from bench.device_seconds import seconds_each
from bench.rounds import turns
from scheduler.execution.streams import Segment
from scheduler.execution.streams_cuda import CudaStream

PRODUCT_SIDE: Final = 8192  # of the matrices whose product is timed


def seconds_in_turn(
    sides: Mapping[str, Callable[[], object]], rounds: int, repeat: int, device: torch.device
) -> dict[str, float]:
    """The median seconds of each side. In each round, every side runs `repeat` times."""
    by_side: dict[str, list[float]] = {name: [] for name in sides}
    for name, _ in turns(sides, rounds):
        by_side[name] += seconds_each(sides[name], repeat, device, warm_up=1)
    return {name: median(seconds) for name, seconds in by_side.items()}


@dataclass(frozen=True)
class Limits:
    """What the device reached in this run, on random numbers."""

    copy_bytes_s: float  # bytes read plus bytes written
    product_flops_s: float  # for square bfloat16 matrices

    @property
    def words(self) -> str:
        """For a note."""
        return (
            f"a device copy moves {self.copy_bytes_s / 1e9:,.0f} GB/s, read plus written; a large product reaches"
            f" {self.product_flops_s / 1e12:,.3g} TFLOP/s"
        )


def measured_limits(device: torch.device) -> Limits:
    """A copy far larger than any cache, and a product of 8192 x 8192 matrices; smaller ones on a CPU."""
    side, repeat = (PRODUCT_SIDE, 20) if device.type == "cuda" else (256, 3)
    copy_bytes_s = measured_copy_bytes_s(device)
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    return Limits(copy_bytes_s, 2 * side**3 / median(seconds_each(lambda: left @ right, repeat, device)))


def measured_copy_bytes_s(device: torch.device) -> float:
    """The bandwidth of a copy; see Limits."""
    is_gpu = device.type == "cuda"
    num_bytes, repeat = (4 << 30, 20) if is_gpu else (1 << 24, 3)
    copy_s = _copy_s(num_bytes, repeat, device)
    if is_gpu:
        torch.cuda.empty_cache()  # gigabytes that what is measured needs
    return 2 * num_bytes / copy_s


def _copy_s(num_bytes: int, repeat: int, device: torch.device) -> float:
    source = torch.empty(num_bytes // 2, dtype=torch.int16, device=device).random_()
    target = torch.empty_like(source)
    return median(seconds_each(lambda: target.copy_(source), repeat, device))


# ---- the host and the device, each alone ----


@dataclass(frozen=True)
class Launched:
    """Seconds of one run: for the host to start it, and for the device to compute it."""

    host_s: float
    device_s: float


def launched(run: Callable[[], object], count: int, rounds: int, limits: Limits, device: torch.device) -> Launched:
    """Times `count` runs in each round, in which `run` should start at most a thousand kernels: more do not fit into a
    device's queue, and the host would wait.

    For the device's time, matrix products keep the device busy until the host has started all runs. On a CPU, both are
    the time of a run.
    """
    if device.type == "cpu":
        seconds = median(seconds_each(run, count * rounds, device))
        return Launched(seconds, seconds)

    square = torch.randn(PRODUCT_SIDE, PRODUCT_SIDE, device=device).bfloat16()
    product_s = 2 * PRODUCT_SIDE**3 / limits.product_flops_s
    seconds_each(run, 1, device)
    hosts: list[float] = []
    devices: list[float] = []
    for _ in range(rounds):
        torch.cuda.synchronize(device)
        start = perf_counter()
        for _ in range(count):
            run()
        spent = perf_counter() - start
        hosts.append(spent / count)

        torch.cuda.synchronize(device)
        for _ in range(busy_products(spent, product_s)):
            square @ square
        devices += seconds_each(run, count, device, warm_up=0)
    return Launched(median(hosts), median(devices))


def busy_products(host_s: float, product_s: float) -> int:
    """How many products keep the device busy for twice as long as the host needs."""
    return 1 + ceil(2 * host_s / product_s)


def why_it_waits(run: Callable[[], object], device: torch.device) -> str:
    """Why a run waits for the device, in torch's words; "" if it does not. On a CPU nothing waits."""
    if device.type == "cpu":
        return ""
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


class ReplayedCudaStream(CudaStream):
    """A forward stream on a device. See bench.step.decoding.Replayed."""

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
