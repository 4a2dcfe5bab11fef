"""The planner and memory: what is released is reused in time, and copies hold pages back."""

import pytest

from protocol.messages_gateway import SamplingParams
from protocol.prefixes import packed
from scheduler.plan import (
    CopyPages,
    Done,
    StageIn,
    WriteDraft,
)
from scheduler.planning.kv_manager import CacheKey
from scheduler.planning.launch_costs import StepCosts
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from tests.doubles.page_ledger import check_pages
from tests.scheduler.building import admitted, greedy, make_req, prompt_chunk
from tests.scheduler.remembering import finish, make


def test_what_is_released_in_flight_is_reused_after_the_launch() -> None:
    planner, executor = make(num_pages=8, max_requests=1)
    req = admitted(planner, (1, 2, 3), greedy(4))
    num_pages, row = len(req.held.pages), req.held.row
    planner.launch(prompt_chunk(req))
    planner.join([req])
    planner.launch((), planner.decodes())
    planner.release(req)
    assert req.holding is None
    planner.release(req)  # the second time does nothing
    for _ in range(2):
        planner.collect()
        assert planner.kv_manager.pages.counts().quarantined == num_pages
        assert planner.kv_manager.rows.num_free == 0
        finish(planner, executor)
    assert planner.collect()
    check_pages(planner.kv_manager.pages)
    assert (planner.kv_manager.pages.counts().free, planner.kv_manager.rows.num_free) == (7, 1)
    assert admitted(planner, (4,), greedy(4)).held.row == row


def test_a_transfer_that_reads_holds_pages_back() -> None:
    planner, _ = make(num_pages=8)
    req = admitted(planner)
    num_pages = len(req.held.pages)
    reading = [True]
    planner.release(req, lambda: reading[0])
    planner.collect()
    assert planner.kv_manager.pages.counts().quarantined == num_pages
    reading[0] = False
    planner.collect()
    assert (planner.kv_manager.pages.counts().quarantined, planner.kv_manager.rows.num_free) == (0, 8)


# ---- copies ----


def choices(planner: Planner, prompt: tuple[int, ...], n: int) -> list[Req]:
    reqs = [make_req(prompt, SamplingParams(4), choice) for choice in range(n)]
    assert planner.admit(reqs, len(prompt) + 4)
    return reqs


def test_each_other_choice_gets_its_copy_of_the_partial_page_in_order() -> None:
    planner, executor = make()
    first, *others = choices(planner, (1, 2, 3, 4, 5), 3)
    planner.launch(prompt_chunk(first))
    assert planner.copies.fork(first, others) == 0
    partial = [req.held.pages[1] for req in (first, *others)]
    assert executor.sent[-1] == CopyPages(2, (partial[0],) * 2, tuple(partial[1:]))
    planner.launch()
    assert executor.plan.ticket == 3  # one sequence of tickets
    for req in (first, *others):
        planner.release(req)
    finish(planner, executor)
    assert not planner.collect()
    executor.outcomes.append(Done(2))
    finish(planner, executor)
    assert planner.collect() and planner.kv_manager.pages.counts().free == 63


@pytest.mark.parametrize("lookahead,num_cached", [(0, 4), (1, 4), (2, 0)])
def test_the_last_output_settles_kv_of_a_draft_that_looks_one_token_ahead(lookahead: int, num_cached: int) -> None:
    """Four tokens are written. The draft's KV of the fourth one was computed with the output after it."""
    planner, executor = make(lookahead=lookahead, caches=True)
    req = make_req((1, 2, 3), SamplingParams(2))
    assert planner.admit([req], 4)
    planner.launch(prompt_chunk(req))
    req.append((7,))
    planner.join([req])
    finish(planner, executor)
    planner.launch((), planner.decodes())
    req.append((8,))
    finish(planner, executor)
    planner.keep(req, "")
    assert planner.kv_manager.num_cached(CacheKey(packed((1, 2, 3, 7, 8, 9)), ""), has_draft=True) == num_cached
    assert planner.kv_manager.num_cached(CacheKey(packed((1, 2, 3, 7, 6, 9)), ""), has_draft=True) == (
        0 if lookahead else 4
    )


def test_kv_that_a_draft_has_still_to_write_is_written_before_it_is_kept() -> None:
    """Others may read its pages from now on, or own them once they are evicted."""
    planner, executor = make(lookahead=1, caches=True, costs_of_steps=StepCosts((1,), ((1.0, 9.0, 9.0, 9.0),)))
    req = make_req((1, 2, 3, 4, 5, 6, 7), SamplingParams(9))
    assert planner.admit([req], 16)
    planner.launch(prompt_chunk(req))
    req.append((50,))
    planner.join([req])
    finish(planner, executor)
    for token in range(51, 56):
        planner.launch((), planner.decodes())
        req.append((token,))
        finish(planner, executor)
    planner.keep(req, "")
    assert isinstance(executor.sent[-1], WriteDraft)
    assert planner.kv_manager.num_cached(CacheKey(packed((*req.prompt_ids, *req.outputs, 9)), ""), has_draft=True) == 12
    planner.release(req)
    assert sum(isinstance(operation, WriteDraft) for operation in executor.sent) == 1


def test_copying_nothing_sends_nothing() -> None:
    planner, executor = make()
    whole, *others = choices(planner, (1, 2, 3, 4), 2)
    assert planner.copies.fork(whole, others) == 0
    (alone,) = choices(planner, (1, 2, 3), 1)
    assert planner.copies.fork(alone, ()) == 0
    assert planner.copies.fork(alone, (), in_twin=()) == 0
    assert executor.sent == [] and planner.kv_manager.newest_ticket == 0


@pytest.mark.parametrize("has_twin", [True, False])
def test_pages_in_the_twin_are_copied_to_the_device_before_they_are_shared(has_twin: bool) -> None:
    planner, executor = make(has_twin=has_twin)
    first, other = choices(planner, (1, 2, 3, 4, 5), 2)
    landed, source, target = tuple(first.held.pages[:2]), first.held.pages[1], other.held.pages[1]
    ticket = planner.copies.fork(first, [other], in_twin=landed)
    if not has_twin:
        assert ticket == 0 and executor.sent == [CopyPages(1, (source,), (target,))]
        assert planner.copies.is_over(ticket)
        return

    assert ticket == 1 and executor.sent == [StageIn(1, landed, (source,), (target,))]
    assert not planner.copies.is_over(ticket) and planner.copies.is_over(0)
    planner.release(first)
    assert not planner.collect() and planner.kv_manager.pages.counts().quarantined == 2
    executor.outcomes.append(Done(ticket))
    assert planner.poll() == [] and planner.copies.is_over(ticket)
    assert planner.collect()


def test_alone_it_is_copied_from_the_twin_too() -> None:
    planner, executor = make(has_twin=True)
    (req,) = choices(planner, (1, 2, 3, 4, 5), 1)
    assert planner.copies.fork(req, (), in_twin=req.held.pages) == 1
    assert executor.sent == [StageIn(1, tuple(req.held.pages), (), ())]
