"""The race detector: what orders two accesses and what does not, by element."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from scheduler.execution.streams import Event
from tests.doubles.race_bench import RaceBench, indices


@pytest.fixture
def bench() -> RaceBench:
    return RaceBench()


def test_a_launch_must_wait_for_the_schedule_stream(bench: RaceBench) -> None:
    bench.detector.name(bench.a, "the table")

    def body() -> None:
        bench.a.fill_(3)
        bench.run(bench.first, lambda: bench.a + 1)

    bench.expect_race(body, "the table (6,)", "written by the scheduler (fill_", "launch 1", "schedule stream has")


def test_a_launch_that_waits_sees_what_was_written_before(bench: RaceBench) -> None:

    def body() -> None:
        bench.a.fill_(3)
        bench.run(bench.first, lambda: bench.a + 1, bench.schedule.record())

    bench.expect_none(body)


def test_an_event_does_not_cover_what_comes_behind_it(bench: RaceBench) -> None:

    def body() -> None:
        event = bench.schedule.record()
        bench.a.fill_(3)
        bench.run(bench.first, lambda: bench.a + 1, event)

    bench.expect_race(body)


def test_the_host_must_not_change_what_a_launch_may_still_read(bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a + 1)
        bench.a.add_(1)

    bench.expect_race(body, "read by forward launch 1", "written by the scheduler (add_", "the host has seen no event")


@pytest.mark.parametrize("see", [lambda event: event.done(), lambda event: event.synchronize()])
def test_the_host_goes_on_after_an_event_that_it_has_seen(see: Callable[[Event], None], bench: RaceBench) -> None:

    def body() -> None:
        see(bench.run(bench.first, lambda: bench.a.add_(1)))
        bench.a.add_(1)

    bench.expect_none(body)


def test_what_the_host_has_seen_lies_before_its_next_launch(bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a.add_(1)).synchronize()
        bench.run(bench.second, lambda: bench.a.add_(1))

    bench.expect_none(body)


@pytest.mark.parametrize("waits", [True, False])
def test_streams_are_ordered_by_waits_alone(waits: bool, bench: RaceBench) -> None:

    def body() -> None:
        event = bench.run(bench.first, lambda: bench.a.add_(1))
        bench.run(bench.second, lambda: bench.b.copy_(bench.a), event if waits else None)

    bench.expect_none(body) if waits else bench.expect_race(body, "forward 2 waits for no event of forward 1")


def test_two_reads_are_no_race(bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a + 1)
        bench.run(bench.second, lambda: bench.a + 1)

    bench.expect_none(body)


ACCESSES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "index_put": lambda a, at: a.index_put_((at,), at),
    "index_copy": lambda a, at: a.index_copy_(0, at, at),
    "index_fill": lambda a, at: a.index_fill_(0, at, 9),
    "scatter": lambda a, at: a.scatter_(0, at, at),
    "index": lambda a, at: a[at],
    "index_select": lambda a, at: a.index_select(0, at),
    "gather": lambda a, at: a.gather(0, at),
    "strided view": lambda a, at: a[int(at[0]) :: 2].clone(),
    "embedding": lambda a, at: torch.nn.functional.embedding(at, a[:, None]),
}


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("is_odd", [True, False])
@pytest.mark.parametrize("is_same", [True, False])
def test_only_the_elements_that_are_touched_count(access: str, is_odd: bool, is_same: bool, bench: RaceBench) -> None:
    here, there = indices(0, 2, 4), indices(1, 3, 5)
    if is_odd:
        here, there = there, here

    def body() -> None:
        bench.run(bench.first, lambda: ACCESSES[access](bench.a, here))
        bench.run(bench.second, lambda: bench.a.index_fill_(0, here if is_same else there, 1))

    bench.expect_race(body) if is_same else bench.expect_none(body)


SEEN: dict[str, Callable[[Tensor, Tensor], object]] = {
    "reads within a list": lambda a, b: torch.cat([b, a]),
    "writes an out argument": lambda a, b: torch.add(b, 1, out=a),
    "reads a keyword argument": lambda a, b: torch.searchsorted(b, b, sorter=a),
    "reads one value": lambda a, b: a[0].item(),
    "writes as another type": lambda a, b: a.view(torch.int32).zero_(),
    "writes by index as another type": lambda a, b: a.view(torch.int32).index_fill_(0, indices(9), 1),
}


@pytest.mark.parametrize("access", SEEN)
def test_every_way_to_touch_a_tensor_is_seen(access: str, bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a.add_(1))
        SEEN[access](bench.a, bench.b)

    bench.expect_race(body, "written by forward launch 1", "by the scheduler")


MADE: dict[str, Callable[[], Tensor]] = {
    "computed": lambda: torch.zeros(3) + 1,
    "from a list": lambda: torch.tensor([1, 2, 3]),
    "from numpy": lambda: torch.from_numpy(np.arange(3)),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("waits", [True, False])
def test_what_is_made_is_written(made: str, waits: bool, bench: RaceBench) -> None:

    def body() -> None:
        table = MADE[made]()
        if waits:
            bench.first.wait(bench.schedule.record())
        bench.first.launch([lambda used: used + 1], table)

    bench.expect_none(body) if waits else bench.expect_race(
        body, "written by the scheduler", "read by forward launch 1"
    )


@pytest.mark.parametrize("is_newer_first", [True, False])
def test_an_older_event_takes_no_knowledge_away(is_newer_first: bool, bench: RaceBench) -> None:

    def body() -> None:
        events = [bench.run(bench.first, lambda: bench.b.add_(1)), bench.run(bench.first, lambda: bench.a.add_(1))]
        for event in reversed(events) if is_newer_first else events:
            bench.second.wait(event)
        bench.run(bench.second, lambda: bench.a.add_(1))

    bench.expect_none(body)


FIRST: dict[str, tuple[Callable[[Tensor], object], ...]] = {
    "a part, then all": (lambda a: a[:2].fill_(1), lambda a: a.fill_(2)),
    "all, then a part": (lambda a: a.fill_(1), lambda a: a[:2].fill_(2)),
    "reads all, then writes a part": (lambda a: a + 1, lambda a: a[:2].fill_(2)),
    "writes all, then reads a part": (lambda a: a.fill_(1), lambda a: a[:2].clone()),
}


@pytest.mark.parametrize("first", FIRST)
def test_the_accesses_of_one_actor_add_up(first: str, bench: RaceBench) -> None:

    def body() -> None:
        for access in FIRST[first]:
            bench.run(bench.first, partial(access, bench.a))
        bench.run(bench.second, lambda: bench.a[4:].fill_(1))

    bench.expect_race(body)


def test_of_three_who_touch_it_each_is_compared_with_each(bench: RaceBench) -> None:

    def body() -> None:
        seen = bench.run(bench.first, lambda: bench.a.add_(1))
        bench.run(bench.second, lambda: bench.a + 1, seen)
        bench.a.add_(1)

    bench.expect_race(body, "forward launch")


def test_who_touched_it_first_is_compared_with_who_came_after(bench: RaceBench) -> None:

    def body() -> None:
        seen = bench.run(bench.first, lambda: bench.a.add_(1))
        bench.run(bench.second, lambda: bench.a.add_(1), seen)
        bench.run(bench.first, lambda: bench.a.add_(1))

    bench.expect_race(body, "forward 1 waits for no event of forward 2")


@pytest.mark.parametrize("type_", [torch.int32, torch.float64])
def test_another_type_of_elements_is_still_the_same_memory(type_: torch.dtype, bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a.view(type_).zero_())
        bench.run(bench.second, lambda: bench.a + 1)

    bench.expect_race(body)


def test_taking_off_a_graph_touches_nothing(bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a + 1)
        with torch.inference_mode():
            bench.a.detach_()

    bench.expect_none(body)


def test_making_a_view_reads_nothing(bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a.add_(1))
        bench.a.view(2, 3).unbind(0)

    bench.expect_none(body)


def test_results_are_read_behind_their_copy(bench: RaceBench) -> None:
    copies: list[Tensor] = []

    def body() -> None:
        bench.run(bench.first, lambda: copies.append(bench.first.to_host(bench.a)))
        bench.first.read_host(copies[0])

    bench.expect_race(body, "copy of results", "read_host")


@pytest.mark.parametrize(("part", "is_race"), [(slice(16, 24), True), (slice(16), False), (slice(8, 17), True)])
@pytest.mark.parametrize("is_write", [True, False])
@pytest.mark.parametrize("made_as", [torch.int64, torch.uint8])
def test_bytes_that_torch_does_not_see(
    part: slice, is_race: bool, is_write: bool, made_as: torch.dtype, bench: RaceBench
) -> None:
    with bench.detector:
        bench.a = torch.zeros(48 // made_as.itemsize, dtype=made_as).view(torch.int64)
    bench.detector.name(bench.a, "pages")
    view = bench.a.numpy().data.cast("B")

    def body() -> None:
        made = bench.schedule.record()
        bench.run(bench.first, lambda: bench.a[2:4].clone() if is_write else bench.a[2:4].fill_(1), made)
        bench.detector.touch_bytes(view[part], "landing", is_write=is_write)

    bench.expect_race(body, "pages", "landing") if is_race else bench.expect_none(body)


@pytest.mark.parametrize("is_write", [True, False])
def test_what_is_told_counts_as_it_is_told(is_write: bool, bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a + 1)
        bench.detector.touch([bench.a], "a kernel", is_write=is_write)

    bench.expect_race(body, "a kernel") if is_write else bench.expect_none(body)


def test_a_read_that_lasts_forbids_writes_meanwhile(bench: RaceBench) -> None:
    bench.detector.name(bench.a, "pages")

    def body() -> None:
        since = bench.detector.clock(0)
        bench.a.fill_(1)
        bench.detector.touch_bytes(bench.a.numpy().data.cast("B"), "sending", since=since)

    bench.expect_race(body, "must end before")


def test_memory_given_back_is_not_the_memory_that_follows(bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: torch.ones(1000).add_(1))
        for _ in range(20):
            torch.ones(1000).add_(1)

    bench.expect_none(body)


def test_what_is_alive_is_not_forgotten_and_what_is_gone_is(bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a.add_(1))
        for _ in range(20):
            torch.ones(3).add_(1)
        assert len(bench.detector._memories) == 1
        bench.a.add_(1)

    bench.expect_race(body, "written by forward launch 1")


def test_the_first_race_is_told(bench: RaceBench) -> None:

    def body() -> None:
        bench.run(bench.first, lambda: bench.a.add_(1))
        bench.a.add_(1)
        bench.a.mul_(2)

    bench.expect_race(body, "written by the scheduler (add_")


@pytest.mark.parametrize("by_index", [True, False])
@pytest.mark.parametrize("is_same", [True, False])
def test_only_what_longer_elements_cover_is_touched(by_index: bool, is_same: bool, bench: RaceBench) -> None:
    at = 2 if is_same else 3
    words, bench.a = bench.a, bench.a.view(torch.int32)

    def longer() -> None:
        words.index_fill_(0, indices(at), 1) if by_index else words[at : at + 1].zero_()

    def body() -> None:
        bench.run(bench.first, lambda: bench.a.index_fill_(0, indices(4), 1))
        bench.run(bench.second, longer)

    bench.expect_race(body) if is_same else bench.expect_none(body)
