"""What is preempted when pages run out. What the planner makes of it is tested with whole workers, in tests/handoff."""

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
