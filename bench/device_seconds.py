"""Times work on a device, by events between its runs, or on a CPU, by the clock."""

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Final

import torch

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
