"""The simulated data plane does to frames what it says, and holds page memory as long as a wire would."""

import random

import pytest

from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.data_plane import INBOX_FRAMES, DataPlane, FrameFate, SimulatedArrivals, SimulatedWire
from tests.explore_handoff.network import Network, Weather
from tests.explore_handoff.processes import Process
from tests.explore_handoff.story import Story


class Bench:
    def __init__(self, fate: FrameFate) -> None:
        self.agenda, self.story = Agenda(), Story()
        rng = random.Random(3)
        self.plane = DataPlane(Network(self.agenda, self.story, Weather(rng, delay_s=0.01)), fate, rng)
        self.here, self.there = Process("prefill-0#1"), Process("decode-0#2")
        self.arrivals = SimulatedArrivals(self.plane, self.there)
        self.wire = SimulatedWire(self.plane, self.here, lambda: lambda: None)
        self.wire.connect(2, self.arrivals.address)

    def run(self, seconds: float) -> None:
        end = self.agenda.now + seconds
        self.agenda.at(end, lambda: None)
        while self.agenda.now < end:
            self.agenda.step()

    def send(self, number: int) -> None:
        self.wire.send(2, [bytes([number])])

    def heard(self) -> list[int]:
        found: list[int] = []
        while (parts := self.arrivals.receive()) is not None:
            found.append(parts[0][0])
        return found

    def carry(self, num_frames: int) -> list[int]:
        found: list[int] = []
        for number in range(num_frames):
            self.send(number)
            self.run(0.002)
            found += self.heard()
        self.run(1)
        return found + self.heard()


def test_one_connection_keeps_the_order_and_several_do_not() -> None:
    assert Bench(FrameFate(ordered=True)).carry(50) == list(range(50))
    overtaken = Bench(FrameFate(ordered=False)).carry(50)
    assert sorted(overtaken) == list(range(50)) != overtaken


def test_frames_are_lost_and_come_twice_as_often_as_they_should_until_all_is_calm() -> None:
    lossy = Bench(FrameFate(ordered=True, lost=0.3))
    assert 50 < len(lossy.carry(100)) < 90 and lossy.story.happened["frame lost"] > 10
    twice = Bench(FrameFate(ordered=False, twice=0.3))
    assert 110 < len(twice.carry(100)) < 150 and twice.story.happened["frame twice"] > 10
    lossy.plane.is_calm = True
    assert lossy.carry(100) == list(range(100))


def test_one_bit_of_a_damaged_frame_is_turned() -> None:
    damaged = Bench(FrameFate(ordered=True, damaged=1.0)).carry(20)
    assert all((number ^ got).bit_count() == 1 for number, got in enumerate(damaged)) and len(damaged) == 20


def test_a_cut_loses_what_is_on_the_way_and_nothing_that_has_not_left() -> None:
    bench = Bench(FrameFate(ordered=True))
    for number in range(20):
        bench.send(number)
    bench.run(0.003)
    (connection,) = bench.plane.connections
    waiting = len(connection.waiting)
    assert 0 < waiting < 20
    before = bench.heard()
    bench.plane.cut(connection)
    found: list[int] = []
    for _ in range(20):
        bench.run(0.2)
        found += bench.heard()
    assert found == list(range(20 - waiting, 20)) and len(before) + waiting < 20
    assert bench.story.happened["frame lost"] == 20 - waiting - len(before)


def test_page_memory_is_read_when_a_frame_departs_and_not_after() -> None:
    bench = Bench(FrameFate(ordered=True))
    page = bytearray(b"old")
    transit = bench.wire.send(2, [b"", memoryview(page)])
    assert not transit.done
    bench.run(0.001)
    assert transit.done
    page[:] = b"new"
    bench.run(1)
    parts = bench.arrivals.receive()
    assert parts is not None and bytes(parts[1]) == b"old"
    bench.wire.send(2, [b"", memoryview(page)])
    page[:] = b"xxx"
    with pytest.raises(AssertionError, match="pages have changed"):
        bench.run(1)


def test_a_receiver_that_reads_nothing_holds_frames_back_at_the_sender() -> None:
    bench = Bench(FrameFate(ordered=True))
    for number in range(3 * INBOX_FRAMES):
        bench.send(number)
    bench.run(5)
    (connection,) = bench.plane.connections
    assert connection.waiting and len(bench.arrivals.inbox) < 2 * INBOX_FRAMES
    bench.wire.disconnect(2)
    bench.run(1)
    assert not bench.plane.connections and bench.here.num_wakes
