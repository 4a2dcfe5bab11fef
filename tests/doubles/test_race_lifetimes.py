"""The race detector: memory that Python gives back while a stream still uses it."""

from functools import partial

import pytest
import torch
from torch import Tensor

from scheduler.execution.streams import Event
from tests.doubles.race_bench import RaceBench
from tests.doubles.streams_simulated import SimulatedStream


def read(used: Tensor) -> None:
    """A segment that changes nothing."""
    used + 1


def launch(bench: RaceBench, stream: SimulatedStream, used: Tensor, *, is_named: bool) -> Event:
    """A launch that reads `used`, behind what the host has written so far."""
    stream.wait(bench.schedule.record())
    if is_named:
        stream.launch([read], used)
    else:
        stream.launch([partial(read, used)])
    return stream.record()


@pytest.mark.parametrize("is_named", [True, False])
def test_the_scheduler_must_not_drop_what_a_launch_may_still_read(is_named: bool) -> None:
    bench = RaceBench()

    def body() -> None:
        used = torch.arange(3)
        launch(bench, bench.first, used, is_named=is_named)
        del used

    bench.expect_none(body) if is_named else bench.expect_race(
        body,
        "a tensor (3,) is given back while it may still be used",
        "used by forward launch 1",
        "dropped by the scheduler (its last reference in body",
        "the scheduler has made it and may overwrite it, because no launch of forward 1 has named it",
    )


def test_a_name_is_good_for_later_launches_of_the_same_stream_only() -> None:
    """As record_stream is. The tensors of Unwritten are used so: named by one launch, read and dropped by another."""

    def used_on(bench: RaceBench, stream: SimulatedStream) -> None:
        waiting = [torch.arange(3)]
        launch(bench, bench.first, waiting[0], is_named=True)
        stream.wait(bench.schedule.record())
        stream.launch([lambda: read(waiting.pop())])

    bench = RaceBench()
    bench.expect_none(partial(used_on, bench, bench.first))
    other = RaceBench()
    other.expect_race(partial(used_on, other, other.second), "no launch of forward 2 has named it")


def test_who_drops_it_within_a_launch_may_still_read_it() -> None:
    bench = RaceBench()

    def body() -> None:
        waiting = [torch.arange(3)]
        bench.first.wait(bench.schedule.record())
        bench.first.launch([lambda: read(waiting.pop())])

    bench.expect_race(body, "used by forward launch 1", "dropped by forward launch 1")


def test_what_the_host_has_seen_to_be_over_needs_no_name() -> None:
    bench = RaceBench()

    def body() -> None:
        used = torch.arange(3)
        launch(bench, bench.first, used, is_named=False).synchronize()
        del used

    bench.expect_none(body)


@pytest.mark.parametrize("waits", [True, False])
def test_what_a_forward_has_made_goes_back_to_its_stream(waits: bool) -> None:
    """Made on the forward stream and read on another one: the forward stream may overwrite it."""
    bench = RaceBench()
    made: list[Tensor] = []

    def body() -> None:
        event = bench.run(bench.first, lambda: made.append(torch.arange(3)))
        event = bench.run(bench.second, lambda: read(made[0]), event)
        bench.run(bench.first, made.clear, event if waits else None)

    bench.expect_none(body) if waits else bench.expect_race(
        body, "dropped by forward launch 2", "forward 1 has made it", "no launch of forward 2 has named it"
    )


def test_the_schedule_stream_shares_its_memory_with_the_host() -> None:
    """Its segments run in the order of what the host computes."""
    bench = RaceBench()

    def body() -> None:
        used = torch.arange(3)
        bench.schedule.launch([partial(read, used)])
        del used

    bench.expect_none(body)
