"""The simulated schedule stream: its segments run in its order, and see of other streams what it has waited for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protocol.errors import InternalError
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.future_map import DraftExtras, FutureMap
from scheduler.execution.future_rows import OWNER_SHIFT, DraftInput
from scheduler.execution.streams import Event
from scheduler.plan import Join
from tests.doubles.race_detector import RaceDetector
from tests.doubles.stale_view import StaleView
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import ScheduleViolation, SimulatedStream, Simulation
from tests.scheduler.building import CPU, draw

STRATEGIES = (Strategy.LATE, Strategy.EARLY, Strategy.EARLY_LATE_COPIES, Strategy.RANDOM, Strategy.RANKED)


class Bench:
    """A FutureMap between a forward and a schedule stream, and one launch after the other."""

    def __init__(self, strategy: Strategy, seed: int = 0, *, debug: bool = True, detect: bool = False) -> None:
        self.detector = RaceDetector() if detect else None
        self.simulation = Simulation(strategy, seed, detector=self.detector)
        self.forward, self.schedule = self.simulation.streams()
        self.future_map = FutureMap(16, CPU, debug)
        self.schedule.share(self.future_map.new_seq_lens_buf)
        self.used: list[Tensor] = []  # by launches in flight

    def publish(self, lengths: dict[int, int], owner_number: int = 1) -> Event:
        """A launch that publishes lengths by row."""
        values = [list(lengths), list(lengths.values()), [owner_number << OWNER_SHIFT] * len(lengths)]
        used = [torch.tensor(column, dtype=torch.int64) for column in values]
        self.used += used
        self.forward.wait(self.schedule.record())
        self.forward.launch([self.future_map.publish], *used)
        event = self.forward.record()
        self.future_map.expect(event)
        return event

    def resolve(self, batch: ScheduleBatch) -> list[int]:
        """The lengths that the batch has then."""
        self.future_map.resolve_seq_lens_cpu(batch, self.schedule)
        batch.check_mirrors()
        lengths: list[int] = batch.seq_lens_cpu.tolist()
        return lengths


def joins(*rows: int, is_known: bool = True) -> list[Join]:
    """Rows with contexts of 10 * row tokens."""
    return [Join(draw(row), 10 * row, 7 if is_known else None) for row in rows]


def batch_of(*rows: int, is_known: bool = False) -> ScheduleBatch:
    """With speculation; unless `is_known`, a launch publishes the lengths."""
    return ScheduleBatch.of(joins(*rows, is_known=is_known), CPU, speculates=True)


def drop_waits(stream: SimulatedStream) -> None:
    """The mutant: it waits for nobody."""
    vars(stream)["wait"] = lambda event: None


@pytest.mark.parametrize("strategy", [*STRATEGIES, Strategy.IN_ORDER])
@pytest.mark.parametrize("seed", range(3))
def test_the_lengths_of_each_launch_arrive(strategy: Strategy, seed: int) -> None:
    bench, batch = Bench(strategy, seed), batch_of(3, 7)
    for step in range(1, 5):
        bench.publish({3: 30 + step, 7: 70 + 2 * step})
        assert bench.resolve(batch) == [30 + step, 70 + 2 * step]
        batch.spec_info = DraftInput.launched(batch.rows_B)


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_dropped_wait_is_noticed_every_time(strategy: Strategy, seed: int, asks_first: bool) -> None:
    bench, batch = Bench(strategy, seed), batch_of(3)
    bench.publish({3: 31})
    bench.resolve(batch)
    batch.spec_info = DraftInput.launched(batch.rows_B)

    drop_waits(bench.schedule)
    event = bench.publish({3: 33})
    if asks_first:
        event.synchronize()
        assert bench.future_map.is_ready(batch)
    with pytest.raises(InternalError, match="row 3 of owner 1 has no length"):
        bench.resolve(batch)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_without_debug_mode_a_dropped_wait_gives_the_lengths_of_the_step_before(strategy: Strategy, seed: int) -> None:
    bench, batch = Bench(strategy, seed, debug=False), batch_of(3)
    bench.publish({3: 31})
    assert bench.resolve(batch) == [31]
    batch.spec_info = DraftInput.launched(batch.rows_B)
    drop_waits(bench.schedule)
    bench.publish({3: 33})
    assert bench.resolve(batch) == [31]  # never 33: the simulation has shown it what it knew


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_prebuilt_rows_need_no_event_of_a_launch_in_flight(strategy: Strategy, seed: int) -> None:
    bench, batch = Bench(strategy, seed), batch_of(4, is_known=True)
    drop_waits(bench.schedule)
    bench.publish({9: 90})
    bench.future_map.seed_seq_lens(joins(4), bench.schedule)
    assert bench.future_map.is_ready(batch)
    assert bench.resolve(batch) == [40]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_seed_is_kept_although_an_older_event_is_waited_for(strategy: Strategy, seed: int) -> None:
    bench, batch = Bench(strategy, seed), batch_of(3)
    bench.publish({3: 31}).synchronize()
    bench.future_map.seed_seq_lens(joins(5), bench.schedule)
    batch.change((), joins(5))
    assert bench.resolve(batch) == [31, 50]
    bench.publish({3: 32, 5: 52})
    batch.spec_info = DraftInput.launched(batch.rows_B)
    assert bench.resolve(batch) == [32, 52]


def test_seeds_live_until_the_schedule_stream_has_read_them() -> None:
    bench = Bench(Strategy.LATE)
    bench.future_map.seed_seq_lens(joins(5), bench.schedule)
    bench.schedule.synchronize()
    assert bench.future_map.new_seq_lens_buf[5] == (1 << OWNER_SHIFT) + 50

    bench.future_map.seed_seq_lens(joins(6), bench.schedule)
    bench.future_map._seeds.clear()  # the mutant
    with pytest.raises(ScheduleViolation, match="nobody keeps alive"):
        bench.schedule.synchronize()


def test_late_segments_of_the_schedule_stream_run_when_somebody_waits_for_them() -> None:
    bench = Bench(Strategy.LATE)
    ran: list[str] = []
    bench.schedule.launch([lambda: ran.append("schedule")])
    bench.forward.wait(bench.schedule.record())
    bench.forward.launch([lambda: ran.append("forward")])
    assert ran == []
    bench.forward.synchronize()
    assert ran == ["schedule", "forward"]


def test_a_view_tells_old_values_own_writes_and_news_apart() -> None:
    tensor = torch.arange(4)
    view = StaleView(tensor)
    tensor[0] = 10  # the forward stream's
    before = view.snapshot()
    with view.shown():
        assert tensor.tolist() == [0, 1, 2, 3]
        tensor[1] = 11
    assert tensor.tolist() == [10, 11, 2, 3]
    tensor[3] = 13
    view.learn(before)
    with view.shown():
        assert tensor.tolist() == [10, 11, 2, 3]  # the snapshot is older than its own write
    view.learn(view.snapshot())
    with view.shown():
        assert tensor.tolist() == [10, 11, 2, 13]


# ---- under the race detector ----


def watched(body: Callable[[Bench], object]) -> Bench:
    """`body` with every launch at once, under the detector."""
    bench = Bench(Strategy.IN_ORDER, debug=False, detect=True)
    assert bench.detector is not None
    bench.detector.name(bench.future_map.new_seq_lens_buf, "new_seq_lens_buf")
    with bench.detector:
        body(bench)
        bench.simulation.point()
    assert bench.detector.num_seen > 0
    return bench


def expect_race(body: Callable[[Bench], object], *parts: str) -> None:
    """`body` does what nothing orders."""
    with pytest.raises(ScheduleViolation, match="race: ") as found:
        watched(body)
    assert all(part in str(found.value) for part in parts), str(found.value)


@pytest.mark.parametrize("waits", [True, False])
def test_lengths_are_read_behind_their_publish(waits: bool) -> None:
    def body(bench: Bench) -> None:
        batch = batch_of(3)
        bench.publish({3: 31})
        if not waits:
            drop_waits(bench.schedule)
        bench.resolve(batch)

    if waits:
        watched(body)
    else:
        expect_race(
            body, "new_seq_lens_buf", "written by forward launch 1 publish", "schedule launch 1 gather_seq_lens"
        )


@pytest.mark.parametrize("row", [3, 4])
def test_a_seed_must_not_meet_a_launch_that_writes_its_row(row: int) -> None:
    def body(bench: Bench) -> None:
        bench.publish({3: 31})
        bench.future_map.seed_seq_lens(joins(row), bench.schedule)

    expect_race(body, "written by forward launch 1 publish", "seed") if row == 3 else watched(body)


@pytest.mark.parametrize("waits", [True, False])
def test_a_launch_writes_lengths_behind_the_seed_of_its_row(waits: bool) -> None:
    def body(bench: Bench) -> None:
        bench.future_map.seed_seq_lens(joins(3), bench.schedule)
        used = [torch.tensor([value]) for value in (3, 31, 1 << OWNER_SHIFT)]
        bench.forward.wait((bench.schedule if waits else bench.forward).record())
        bench.forward.launch([bench.future_map.publish], *used)

    watched(body) if waits else expect_race(body, "seed", "publish")


def test_the_host_goes_on_with_lengths_that_it_has_waited_for() -> None:
    def body(bench: Bench) -> None:
        batch = batch_of(3)
        for _ in range(2):
            bench.publish({3: 31})
            bench.resolve(batch)
            batch.spec_info = DraftInput.launched(batch.rows_B)
            assert (batch.seq_lens_B + 1).tolist() == [32]

    assert watched(body).future_map.new_seq_lens_buf[3] == (1 << OWNER_SHIFT) + 31


@pytest.mark.parametrize("kind", ["topk_index_NK", "topk_p_NK", "hidden_NE"])
@pytest.mark.parametrize("waits", [True, False])
def test_every_buffer_of_draft_inputs_is_watched(kind: str, waits: bool) -> None:
    """Two streams stash for the same row. PREBUILT rows would do so if they did not use the forward stream."""

    def body(bench: Bench) -> None:
        def stash(rows_N: Tensor, owners_N: Tensor, extras: DraftExtras) -> None:
            bench.future_map.stash_extras(rows_N, extras, owners_N)

        rows_N, owners_N = torch.tensor([3]), torch.tensor([1 << OWNER_SHIFT])
        extras = DraftExtras(**{kind: torch.ones((1, 2), dtype=torch.int64)})
        used = rows_N, owners_N, extras
        second = bench.simulation.stream("second")
        bench.future_map.stash_extras(rows_N, extras, owners_N)  # makes the buffer
        bench.forward.wait(bench.schedule.record())
        bench.forward.launch([stash], *used)
        second.wait((bench.forward if waits else bench.schedule).record())
        second.launch([stash], *used)

    watched(body) if waits else expect_race(body, "second", "forward")
