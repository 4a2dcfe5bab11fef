"""What is preempted when pages run out. What the planner makes of it is tested with whole workers, in tests/handoff."""

import random
from collections.abc import Sequence

import pytest

from scheduler.planning.growth import Growth, pick_preempted
from scheduler.planning.kv_manager import Holding, KvManager
from scheduler.planning.req import Req
from tests.scheduler.building import greedy, make_req


def running(*nums_outputs: int, num_pages: int = 2) -> list[Req]:
    """Choices with so many outputs each, and pages of their own."""
    reqs = [make_req(sampling=greedy(50), name=f"r{index}") for index in range(len(nums_outputs))]
    for index, (req, num_outputs) in enumerate(zip(reqs, nums_outputs, strict=True)):
        req.outputs, req.num_sampled = [7] * num_outputs, num_outputs
        req.holding = Holding(index + 1, 1, list(range(index * num_pages, (index + 1) * num_pages)), 99)
    return reqs


def resumed(req: Req, num_new: int) -> Req:
    """The same as one that began again, or came back from host memory, and has drawn `num_new` outputs since."""
    req.num_resumed = req.num_sampled - num_new
    return req


def chosen(reqs: Sequence[Req], missing: int, margin: int = 0) -> list[int]:
    """Their places."""
    return [reqs.index(req) for req in pick_preempted(reqs, missing, len, margin)]


def test_the_fewest_outputs_are_preempted_first_and_among_equals_the_youngest() -> None:
    assert chosen(running(5, 2, 9, 2, 3), 8) == [3, 1, 4, 0]


@pytest.mark.parametrize("missing, expected", [(-1, 0), (0, 0), (1, 1), (2, 1), (3, 2), (4, 2)])
def test_no_more_are_preempted_than_pages_are_missing(missing: int, expected: int) -> None:
    assert len(chosen(running(1, 2, 3, 4), missing)) == expected


@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_the_last_one_never_is_preempted(num: int) -> None:
    reqs = running(*range(num))
    assert chosen(reqs, 1000) == list(range(num - 1))
    assert not chosen(reqs[:1], 1000)


def test_a_page_that_others_read_does_not_come_free() -> None:
    reqs = running(1, 2, 3, 4)
    shared = reqs[0].held.pages
    assert pick_preempted(reqs, 2, lambda pages: 0 if pages is shared else 2, 0) == reqs[:2]


def test_one_that_began_again_or_came_back_runs_its_margin_first() -> None:
    reqs = running(3, 5, 7)
    resumed(reqs[0], 1)
    assert chosen(reqs, 2, margin=4) == [1]
    assert chosen(reqs, 4, margin=4) == [1, 2]
    assert chosen(reqs, 2, margin=1) == [0]


def test_the_last_in_priority_is_preempted_first_and_only_then_the_fewest_outputs_count() -> None:
    reqs = running(9, 1, 5, 7)
    for req, priority in zip(reqs, (3, 0, 3, -2), strict=True):
        req.priority = priority
    assert chosen(reqs, 8) == [2, 0, 1]
    assert chosen(resumed_first(reqs), 8, margin=4) == [0, 1, 3], "its margin counts more than its priority"


def resumed_first(reqs: list[Req]) -> list[Req]:
    """The third one has just begun again."""
    resumed(reqs[2], 1)
    return reqs


@pytest.mark.parametrize("width, num_preempted", [(0, 1), (2, 2)])
def test_with_a_draft_a_short_choice_may_miss_several_pages(width: int, num_preempted: int) -> None:
    """Each choice has a page for each of 2 tokens. One more is needed, with a draft of 2 tokens 4."""
    kv_manager = KvManager(9, 1, max_requests=4, max_context=60)
    reqs = [make_req((1, 2), greedy(50), name=f"r{index}") for index in range(4)]
    for req in reqs:
        (req.holding,) = kv_manager.admit(2, 2, 1, max_tokens=52) or (None,)
        req.num_sampled = 1
    growth = Growth(kv_manager, width)
    growth.watch(reqs[0])
    assert growth.grow_due() == [] and growth.out_of_pages == [reqs[0]]
    preempted = growth.to_preempt(reqs)
    assert len(preempted) == num_preempted and reqs[0] not in preempted


def test_who_waits_for_a_page_gets_one_before_those_that_run_out_now() -> None:
    """Three choices with all pages: one is short, the next one runs out now, and the page of the last comes free."""
    kv_manager = KvManager(6, 1, max_requests=4, max_context=60)
    first, second, last = (make_req((1, 2), greedy(50), name=f"r{index}") for index in range(3))
    for req, num_pages in ((first, 2), (second, 2), (last, 1)):
        (req.holding,) = kv_manager.admit(num_pages, num_pages, 1, max_tokens=52) or (None,)
        req.num_sampled = 1
    growth = Growth(kv_manager)
    growth.watch(first)
    assert growth.grow_due() == [] and growth.out_of_pages == [first]

    growth.watch(second)
    kv_manager.release(last.held)
    assert kv_manager.pages.num_free == 1
    assert growth.grow_due() == [first] and growth.out_of_pages == [second]


WIDTH = 7


class Watched(Growth):
    """Counts how often a choice is watched anew."""

    num_looks = 0

    def watch(self, req: Req) -> None:
        self.num_looks += 1
        super().watch(req)


def growing(has_draft: bool) -> tuple[Watched, Req]:
    """A choice of 200 outputs that begins to decode, with pages of 16 tokens."""
    kv_manager, req = KvManager(20, 16, max_requests=4, max_context=210), make_req((1, 2), greedy(200))
    (req.holding,) = kv_manager.admit(2, 2, 1, max_tokens=201, has_draft=has_draft) or (None,)
    req.num_sampled, growth = 1, Watched(kv_manager, WIDTH)
    growth.watch(req)
    return growth, req


@pytest.mark.parametrize("has_draft, least, most", [(True, 80, 160), (False, 10, 14)])
def test_a_choice_without_a_draft_is_looked_at_only_when_its_pages_run_out(
    has_draft: bool, least: int, most: int
) -> None:
    """Launches draw one token each. With a draft each might have drawn seven, so it is looked at ever sooner."""
    growth, req = growing(has_draft)
    for _ in range(160):
        growth.grow_due()
        growth.launched()
        req.num_sampled += 1
    assert least <= growth.num_looks <= most


@pytest.mark.parametrize("seed", range(30))
def test_whatever_launches_keep_each_has_pages_for_all_that_it_writes(seed: int) -> None:
    """The launch in flight counts as one token. The choice loses its draft at some time, and keeps one from then on;
    launches still write as many, for the sake of other choices."""
    rng, in_flight = random.Random(seed), 0
    growth, req = growing(has_draft=True)
    loses_at, num_written = rng.randrange(40), req.num_written  # what launches have really written
    for launch in range(200):
        req.num_sampled += max(0, in_flight - 1)  # the result is known
        req.held.has_draft &= launch < loses_at
        growth.grow_due()
        in_flight = rng.randint(1, WIDTH) if req.held.has_draft else 1
        room = min(len(req.held.pages) * 16, req.longest)
        assert min(num_written + WIDTH, req.longest) <= room and not growth.out_of_pages
        req.num_sampled += 1
        num_written += in_flight
        growth.launched()
        if req.num_left < 2 * WIDTH:
            return
    raise AssertionError("the choice does not end")
