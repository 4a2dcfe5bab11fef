"""Lengths that launches publish, and that the scheduler reads before it builds the next launch."""

import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.errors import InternalError
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.future_map import POISON, FutureMap
from scheduler.execution.future_rows import OWNER_SHIFT, DraftInput
from scheduler.execution.streams import InlineStream, Segment
from scheduler.plan import Join
from tests.scheduler.building import CPU, ManualEvent, ManualStream, draw, ids

SCHEDULE = InlineStream()


def joins(*rows: int, owner_number: int = 1, is_known: bool = True) -> list[Join]:
    """Rows with a context of 10 * row tokens. Unless the host knows their next token, a launch publishes the length."""
    return [Join(draw(row, owner_number=owner_number), 10 * row, 7 if is_known else None) for row in rows]


def batch_of(*rows: int, owner_number: int = 1, is_known: bool = False) -> ScheduleBatch:
    """With speculation."""
    return ScheduleBatch.of(joins(*rows, owner_number=owner_number, is_known=is_known), CPU, speculates=True)


class Bench:
    """A FutureMap and what a launch does with it."""

    def __init__(self, debug: bool = True) -> None:
        self.future_map = FutureMap(16, CPU, debug)

    def publish(self, lengths: dict[int, int], owner_number: int = 1) -> None:
        """A launch publishes lengths by row, and the stream records the event."""
        owners = ids(*[owner_number << OWNER_SHIFT for _ in lengths])
        self.future_map.publish(ids(*lengths), ids(*lengths.values()), owners)
        self.future_map.expect(SCHEDULE.record())

    def resolve(self, batch: ScheduleBatch) -> list[int]:
        """The lengths of the batch from then on."""
        assert self.future_map.is_ready(batch)
        self.future_map.resolve_seq_lens_cpu(batch, SCHEDULE)
        batch.check_mirrors()
        lengths: list[int] = batch.seq_lens_cpu.tolist()
        return lengths


def test_published_lengths_replace_those_on_the_device_and_on_the_host_and_the_longest() -> None:
    bench, batch = Bench(), batch_of(3, 7)
    held = batch.seq_lens_B, batch.seq_lens_cpu
    bench.publish({7: 75, 3: 34, 5: 99})
    assert bench.resolve(batch) == [34, 75]
    assert (batch.seq_lens_B.tolist(), batch.longest) == ([34, 75], 75)
    assert batch.spec_info is not None and not batch.spec_info.is_pending
    assert (batch.seq_lens_B.dtype, batch.seq_lens_B.shape) == (torch.int64, (2,))
    assert (held[0].tolist(), held[1].tolist()) == ([30, 70], [30, 70])  # a launch in flight may hold the old ones


@pytest.mark.parametrize("lengths", [torch.tensor([[34]], dtype=torch.int32), torch.tensor([34])])
def test_lengths_of_any_integer_dtype_and_of_shape_n_1(lengths: Tensor) -> None:
    bench, batch = Bench(), batch_of(3)
    bench.future_map.publish(ids(3), lengths, ids(1 << OWNER_SHIFT))
    bench.future_map.expect(SCHEDULE.record())
    assert bench.resolve(batch) == [34]


def test_without_speculation_nothing_is_resolved() -> None:
    batch = ScheduleBatch.of(joins(3), CPU)
    before = batch.seq_lens_B, batch.seq_lens_cpu
    future_map = FutureMap(16, CPU, debug=True)
    assert future_map.is_ready(batch)
    future_map.resolve_seq_lens_cpu(batch, SCHEDULE)
    assert (batch.seq_lens_B, batch.seq_lens_cpu) == before and batch.spec_info is None


def test_an_empty_publish_keeps_nobody_waiting() -> None:
    """Launch 1 publishes, launch 2 has no rows: the stream records the newer event all the same."""
    bench, batch = Bench(), batch_of(3)
    bench.publish({3: 31})
    bench.publish({})
    assert bench.resolve(batch) == [31]


def test_what_nobody_has_published_is_not_waited_for() -> None:
    bench, batch = Bench(), batch_of(3)
    for call in (bench.future_map.is_ready, lambda draws: bench.future_map.resolve_seq_lens_cpu(draws, SCHEDULE)):
        with pytest.raises(InternalError, match=r"rows \[3\] wait for their lengths, but nothing was published"):
            call(batch)


def test_a_publish_is_waited_for_once() -> None:
    bench, batch = Bench(), batch_of(3)
    bench.publish({3: 31})
    bench.resolve(batch)
    batch.spec_info = DraftInput.launched(batch.rows_B)
    with pytest.raises(InternalError, match="nothing was published since the last wait"):
        bench.future_map.is_ready(batch)


@pytest.mark.parametrize("debug", [True, False])
def test_a_missing_publish_is_noticed(debug: bool) -> None:
    """The event is there, the value is not."""
    bench, batch = Bench(debug), batch_of(3, 7)
    bench.publish({3: 31})
    with pytest.raises(InternalError, match="row 7 of owner 1 has no length"):
        bench.resolve(batch)
    assert batch.seq_lens_cpu.tolist() == batch.seq_lens_B.tolist() == [30, 70]  # the batch is as it was


def test_lengths_of_the_step_before_are_noticed() -> None:
    bench, batch = Bench(), batch_of(3)
    bench.publish({3: 31})
    bench.resolve(batch)
    batch.spec_info = DraftInput.launched(batch.rows_B)
    bench.publish({5: 50})  # the launch has forgotten row 3
    with pytest.raises(InternalError, match="row 3 of owner 1 has no length"):
        bench.resolve(batch)


@pytest.mark.parametrize("debug", [True, False])
def test_a_length_of_the_rows_former_owner_is_noticed(debug: bool) -> None:
    bench, batch = Bench(debug), batch_of(3, owner_number=2)
    bench.publish({3: 31}, owner_number=1)
    with pytest.raises(InternalError, match="row 3 of owner 2 has no length"):
        bench.resolve(batch)


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize("length", [0, -1])
def test_a_context_has_at_least_one_token(length: int, debug: bool) -> None:
    bench, batch = Bench(debug), batch_of(3)
    bench.publish({3: length})
    with pytest.raises(InternalError, match="row 3 of owner 1 has no length"):
        bench.resolve(batch)


def test_a_second_publish_supersedes_the_first_while_it_is_awaited() -> None:
    bench, batch, forward = Bench(), batch_of(3), ManualStream()
    first, second = ManualEvent(forward), ManualEvent(forward)
    bench.publish({3: 31})
    bench.future_map.expect(first)
    assert not bench.future_map.is_ready(batch)
    bench.publish({3: 33})
    bench.future_map.expect(second)
    first.reached = True
    assert not bench.future_map.is_ready(batch)  # it needs the newest
    second.reached = True
    assert bench.resolve(batch) == [33]


def test_a_publish_that_comes_early_waits_for_its_reader() -> None:
    bench = Bench()
    bench.publish({3: 31, 5: 55})
    batch = batch_of(3)  # joins when the launch that publishes its length has passed the event already
    assert bench.resolve(batch) == [31]


def test_resolving_too_early_waits_for_the_event() -> None:
    """A caller that has not asked is_ready gets the right lengths, and waits for them."""
    forward, future_map, batch = ManualStream(), FutureMap(16, CPU, debug=True), batch_of(3)
    forward.launch([future_map.publish], ids(3), ids(31), ids(1 << OWNER_SHIFT))
    future_map.expect(forward.record())
    assert not future_map.is_ready(batch)
    future_map.resolve_seq_lens_cpu(batch, SCHEDULE)
    assert batch.seq_lens_cpu.tolist() == [31]


def test_a_failed_launch_releases_who_waits() -> None:
    """It publishes the lengths that it was given."""
    bench, batch = Bench(), batch_of(3, 5)
    bench.publish({3: 31, 5: 52})
    bench.resolve(batch)
    batch.spec_info = DraftInput.launched(batch.rows_B)
    bench.future_map.publish(batch.rows_B, batch.seq_lens_B, batch.members.owners_B)
    bench.future_map.expect(SCHEDULE.record())
    batch.change((3,), joins(8, is_known=False))
    bench.publish({8: 80})
    assert bench.resolve(batch) == [52, 80]


def test_a_batch_of_prebuilt_rows_needs_no_event() -> None:
    bench, batch = Bench(), batch_of(4, 6, is_known=True)
    bench.future_map.seed_seq_lens(joins(4, 6), SCHEDULE)
    event = ManualEvent(ManualStream())
    bench.future_map.expect(event)  # a launch in flight, of others
    assert bench.resolve(batch) == [40, 60]
    assert bench.future_map._publish_ready is event
    event.reached = True
    batch.merge(batch_of(9))
    bench.future_map.seed_seq_lens(joins(4, 6), SCHEDULE)
    bench.publish({9: 91})
    assert bench.resolve(batch) == [40, 60, 91]


def test_prebuilt_rows_join_a_batch_whose_lengths_are_pending() -> None:
    bench, batch, event = Bench(), batch_of(3, 7), ManualEvent(ManualStream())
    bench.publish({3: 33, 7: 74})
    bench.future_map.expect(event)
    bench.future_map.seed_seq_lens(joins(5), SCHEDULE)
    batch.change((), joins(5))
    assert not bench.future_map.is_ready(batch)
    event.reached = True
    assert bench.resolve(batch) == [33, 74, 50]
    assert batch.longest == 74


def test_who_leaves_takes_the_wait_along() -> None:
    bench, batch = Bench(), batch_of(3)
    bench.future_map.expect(ManualEvent(ManualStream()))
    bench.future_map.seed_seq_lens(joins(5), SCHEDULE)
    batch.change((3,), joins(5))
    assert bench.resolve(batch) == [50]  # only the launched row was waited for


def test_a_row_that_was_not_seeded_is_noticed() -> None:
    bench, batch = Bench(), batch_of(5, is_known=True)
    with pytest.raises(InternalError, match="row 5 of owner 1 has no length"):
        bench.resolve(batch)


def test_only_rows_whose_token_the_host_knows_are_seeded() -> None:
    bench = Bench()
    bench.future_map.seed_seq_lens([*joins(4, is_known=False), *joins(6)], SCHEDULE)
    assert bench.future_map.new_seq_lens_buf[4] == POISON
    assert bench.future_map.new_seq_lens_buf[6] == (1 << OWNER_SHIFT) + 60


def test_a_row_seeded_for_its_next_owner_takes_no_length_of_the_one_before() -> None:
    bench = Bench()
    bench.publish({3: 31}, owner_number=1)  # the launch that was in flight when the first owner finished
    bench.future_map.seed_seq_lens(joins(3, owner_number=2), SCHEDULE)
    assert bench.resolve(batch_of(3, owner_number=2, is_known=True)) == [30]


def test_future_indices_follow_the_rows() -> None:
    batch = batch_of(4, 2, 9)
    assert batch.spec_info is not None and batch.spec_info.pending == [True, True, True]
    batch.change((2,), joins(7))
    assert batch.spec_info.future_indices_B.tolist() == [4, 9, 7]
    assert batch.spec_info.pending == [True, True, False]
    batch.filter([2])
    assert batch.spec_info.future_indices_B.tolist() == [7] and not batch.spec_info.is_pending
    batch.spec_info = DraftInput.launched(batch.rows_B)
    assert batch.spec_info.is_pending
    batch.check_mirrors()


def test_indices_that_are_not_the_rows_are_noticed() -> None:
    batch = batch_of(4, 2)
    batch.spec_info = DraftInput.launched(ids(4, 3))
    with pytest.raises(AssertionError):
        batch.check_mirrors()


class Noting(InlineStream):
    """A stream that notes which tensors its work reads, and does not keep them."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[weakref.ref[Tensor]] = []

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        self.read += [weakref.ref(tensor) for tensor in used if isinstance(tensor, Tensor)]
        super().launch(segments, *used)


def test_seeds_are_kept_until_the_schedule_stream_has_read_them_and_no_longer() -> None:
    bench, stream = Bench(), Noting()
    for _ in range(3):
        stream.read.clear()
        bench.future_map.seed_seq_lens(joins(3, 5), stream)
        seeds = [seed for seed in stream.read if seed() is not bench.future_map.new_seq_lens_buf]
        assert len(seeds) == 2 and all(seed() is not None for seed in seeds), "the stream may still read them"
        bench.future_map.resolve_seq_lens_cpu(batch_of(3, 5, is_known=True), stream)
        assert all(seed() is None for seed in seeds), "they are kept for ever"
