"""Three simulated streams under the race detector, for the tests of the detector itself."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scheduler.execution.streams import Event
from tests.doubles.race_detector import RaceDetector
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import ScheduleViolation, SimulatedStream, Simulation

Body = Callable[[], object]


class RaceBench:
    """Two forward streams and a schedule stream under the detector; every launch runs at once."""

    def __init__(self) -> None:
        self.detector = RaceDetector()
        self.simulation = Simulation(Strategy.IN_ORDER, 7, detector=self.detector)
        self.first, self.schedule = self.simulation.streams()
        self.second, _ = self.simulation.streams()
        self.a, self.b = torch.zeros(6, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)  # nobody wrote them

    def run(self, stream: SimulatedStream, body: Body, after: Event | None = None) -> Event:
        """`body` on `stream`, after `after`; an event behind it."""
        if after is not None:
            stream.wait(after)
        stream.launch([lambda: _call(body)])
        return stream.record()

    def expect_race(self, body: Body, *parts: str) -> None:
        """`body` does what nothing orders."""
        with pytest.raises(ScheduleViolation, match="race: ") as found:
            self._watch(body)
        assert all(part in str(found.value) for part in (*parts, "seed 7")), str(found.value)

    def expect_none(self, body: Body) -> None:
        """`body` touches something, and all is ordered."""
        self._watch(body)
        assert self.detector.num_seen > 0

    def _watch(self, body: Body) -> None:
        with self.detector:
            body()
            self.simulation.point()


def _call(body: Body) -> None:
    body()


def indices(*values: int) -> Tensor:
    """As a tensor."""
    return torch.tensor(values)
