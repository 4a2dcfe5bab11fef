"""Choices whose KV is in host memory, with an executor that only remembers: what is sent, counted and given back."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.messages_gateway import FinishReason
from scheduler.plan import (
    Done,
    DropMask,
    Fill,
    ForgetGrammar,
    Join,
    LearnGrammar,
    MakeMask,
    Spill,
    StepResult,
    WriteDraft,
)
from scheduler.planning.launch_costs import StepCosts
from scheduler.planning.launched import Launched
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from scheduler.planning.spills import RESTART_S, Costs, is_cheaper_on_host
from tests.doubles.page_ledger import check_pages
from tests.scheduler.building import greedy, make_req, prompt_chunk
from tests.scheduler.remembering import Remembers, draw_of, make

NUM_HOST_PAGES = 1 + 8


def over(planner: Planner, executor: Remembers, *tokens: int) -> list[tuple[Req, tuple[int, ...]]]:
    """The oldest launch is over; its rows drew `tokens`. The choices that took one."""
    launched = planner.in_flight[0]
    rows = tuple(owners.pop(launched.ticket))
    executor.outcomes.append(StepResult(launched.ticket, rows, tuple((token,) for token in tokens)))
    ((_, result),) = planner.poll()
    drawn = planner.results.drawn(result.rows, result.tokens)
    for req, run in drawn:
        req.append(run)
    return drawn


owners: dict[int, list[tuple[int, int]]] = {}  # of the launches in flight, by ticket


def noted(launched: Launched) -> Launched:
    owners[launched.ticket] = [req.held.owner for req in launched.reqs[-1:]]
    return launched


def begun(**options: Any) -> tuple[Planner, Remembers, Req]:
    """A choice of 5 prompt tokens that has its first output."""
    planner, executor = make(**{"num_host_pages": NUM_HOST_PAGES, **options})
    req = make_req((1, 2, 3, 4, 5), greedy(20))
    assert planner.admit([req], 5, grows=True)
    noted(planner.launch(prompt_chunk(req)))
    planner.join([req])
    over(planner, executor, 50)
    return planner, executor, req


def decoding(**options: Any) -> tuple[Planner, Remembers, Req]:
    """A choice of 5 prompt tokens that has 2 outputs; a launch that draws the third is in flight."""
    planner, executor, req = begun(**options)
    for token in (51, 0):
        assert planner.make_room() == []
        noted(planner.launch((), planner.decodes()))
        if token:
            over(planner, executor, token)
    assert req.outputs == [50, 51] and req.num_sampled == 3
    return planner, executor, req


def done(planner: Planner, executor: Remembers) -> None:
    """The newest copy is over."""
    newest = executor.sent[-1]
    assert not isinstance(newest, LearnGrammar | ForgetGrammar | MakeMask | DropMask)
    executor.outcomes.append(Done(newest.ticket))
    planner.poll()
    planner.collect()


def expect_rest(planner: Planner) -> None:
    planner.collect()
    assert planner.kv_manager.host_pages is not None
    for pool in (planner.kv_manager.pages, planner.kv_manager.host_pages):
        check_pages(pool)
        assert pool.counts().free == pool.counts().total
    assert planner.kv_manager.rows.num_free == 8 and not planner.spills.away


def test_its_kv_goes_to_host_memory_and_comes_back_and_it_goes_on_from_its_last_token() -> None:
    planner, executor, req = decoding()
    pages = tuple(req.held.pages)
    assert planner.spill(req) and req.holding is None and req.num_sampled == 2
    host_pages = planner.spills.away[req].host_pages
    assert executor.sent[-1] == Spill(4, pages[:2], host_pages) and len(host_pages) == 2  # 6 tokens: pages of 4
    assert planner.kv_manager.host_page_counts().owned == 2 and planner.spills.counters == {
        "spills": 1,
        "spilled_now": 1,
    }
    assert planner.decodes() == () and planner.roster.num_going_on == 0

    assert over(planner, executor, 52) == [], "a late result is taken"
    assert not planner.collect() and planner.make_room() == [], "its pages are still read"
    assert isinstance(executor.sent[-1], Spill), "KV is copied back before the copy out is over"
    done(planner, executor)
    assert planner.make_room() == []
    holding = planner.spills.away[req].holding
    assert holding is not None and executor.sent[-1] == Fill(5, host_pages, tuple(holding.pages[:2]))
    assert req.holding is None, "it holds pages whose KV is not there"
    assert planner.poll() == [] and planner.make_room() == []
    assert planner.decodes() == (), "it joins before its KV is back"

    done(planner, executor)
    assert not planner.spills.away and planner.kv_manager.host_page_counts().free == NUM_HOST_PAGES - 1
    assert planner.make_room() == []
    noted(planner.launch((), planner.decodes()))
    assert executor.plan.joins == (Join(draw_of(req, 5), 6, 51),)
    assert executor.plan.leaves == (1,), "the executor goes on with its former row"
    assert over(planner, executor, 52) == [(req, (52,))]
    planner.release(req)
    expect_rest(planner)


def test_with_a_draft_only_a_choice_that_has_begun_goes_to_host_memory() -> None:
    planner, executor, req = begun(lookahead=1)
    assert not planner.spill(req) and req.holding is not None

    assert planner.make_room() == []
    noted(planner.launch((), planner.decodes()))
    assert executor.plan.joins[0].begins
    over(planner, executor, 51)
    assert planner.spill(req)
    done(planner, executor)
    assert planner.make_room() == []
    done(planner, executor)
    noted(planner.launch((), planner.decodes()))
    assert not executor.plan.joins[0].begins


def test_what_a_draft_has_still_to_write_is_written_before_kv_goes_to_host_memory() -> None:
    planner, executor, req = begun(lookahead=1, costs_of_steps=StepCosts((1,), ((1.0, 9.0, 9.0, 9.0),)))
    noted(planner.launch((), planner.decodes()))
    assert executor.plan.num_steps == 0
    over(planner, executor, 51)
    assert planner.spill(req)
    write, spill = executor.sent[-2:]
    assert isinstance(write, WriteDraft) and isinstance(spill, Spill)


def test_with_three_draft_layers_a_choice_draws_its_last_two_outputs_again() -> None:
    planner, executor, req = begun(lookahead=3)
    for token in (51, 52):
        assert planner.make_room() == [] and not planner.spill(req), "it would go on within its prompt"
        noted(planner.launch((), planner.decodes()))
        over(planner, executor, token)
    assert planner.spill(req) and len(planner.spills.away[req].host_pages) == 2
    assert (req.num_sampled, planner.spills.num_redrawn(req)) == (1, 2)
    done(planner, executor)
    planner.make_room()
    done(planner, executor)
    planner.make_room()
    noted(planner.launch((), planner.decodes()))
    (join,) = executor.plan.joins
    assert (join.seq_len, join.input_id, join.begins) == (5, 50, False) and req.num_resumed == 1
    assert planner.spills.take_redrawn(req, (51,)) == ()
    assert (req.num_sampled, planner.spills.num_redrawn(req)) == (2, 1)
    req.num_sampled += 1  # the next launch
    assert planner.spills.take_redrawn(req, (52, 53, 54)) == (53, 54) and not planner.spills.redraws
    req.append((53, 54))
    assert req.outputs == [50, 51, 52, 53, 54] and req.num_sampled == 5


def test_nobody_is_admitted_before_it_comes_back_and_the_first_one_comes_first() -> None:
    planner, executor, req = decoding()
    planner.spill(req)
    over(planner, executor, 52)
    other = make_req((7,), greedy(2))
    assert not planner.admit([other], 1)
    done(planner, executor)
    planner.make_room()
    assert planner.admit([other], 1)


def test_the_first_that_finds_no_room_holds_back_a_later_one_that_would_find_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, executor, long = decoding()
    short, asked = make_req((1,), greedy(20), name="short"), list[int]()
    planner.spill(long)
    over(planner, executor, 52)
    done(planner, executor)
    spills = planner.spills
    spills.away[short] = replace(spills.away[long], req=short)

    def admit(prompt_len: int, *_: object, **__: object) -> None:
        asked.append(prompt_len)

    monkeypatch.setattr(planner.kv_manager, "admit", admit)
    spills.copy_back()
    assert asked == [long.prompt_len], "the short one is not asked for"


def test_one_that_ends_while_it_lacks_a_page_holds_nobody_back() -> None:
    planner, executor, req = begun(num_pages=1 + 2, num_host_pages=0)
    for token in (51, 52, 53):
        assert planner.make_room() == []
        noted(planner.launch((), planner.decodes()))
        over(planner, executor, token)
    assert planner.make_room() == [] and planner.decodes() == (), "its pages are full"

    other = make_req((7,), greedy(2))
    planner.collect()
    assert not planner.admit([other], 1)
    req.finish = FinishReason.CANCELLED
    planner.release(req)
    planner.collect()
    assert planner.admit([other], 1)


def test_in_the_same_row_again_it_is_another_owner() -> None:
    planner, executor, req = decoding()
    before = req.held.owner
    planner.spill(req)
    over(planner, executor, 52)
    done(planner, executor)
    planner.make_room()
    done(planner, executor)
    assert planner.poll() == [] and req.held.owner == (before[0], before[1] + 1)
    assert planner.results.drawn([before], [(9,)]) == []


@pytest.mark.parametrize("state", ["copied out", "waiting", "copied back", "back"])
def test_it_is_cancelled_in_every_state(state: str) -> None:
    planner, executor, req = decoding()
    planner.spill(req)
    over(planner, executor, 52)
    if state != "copied out":
        done(planner, executor)
    if state in ("copied back", "back"):
        planner.make_room()
    if state == "back":
        done(planner, executor)
    req.finish = FinishReason.CANCELLED
    for _ in range(2):  # the second time does nothing
        planner.release(req)
    planner.collect()
    is_copying = state in ("copied out", "copied back")
    assert planner.kv_manager.host_page_counts().quarantined == 2 * is_copying, (
        "a copy reads or writes these host_pages"
    )
    if is_copying:
        done(planner, executor)
    assert planner.make_room() == [] and planner.decodes() == ()
    expect_rest(planner)


@pytest.mark.parametrize("num_host_pages", [0, 2])
def test_without_room_in_host_memory_it_stays_as_it_is(num_host_pages: int) -> None:
    planner, executor, req = decoding(num_host_pages=num_host_pages)
    assert not planner.spill(req)
    assert req.holding is not None and req.num_sampled == 3 and len(executor.sent) == 3
    assert over(planner, executor, 52) == [(req, (52,))]


def test_a_choice_whose_first_output_is_unknown_has_nothing_to_go_on_from() -> None:
    planner, _ = make(num_host_pages=NUM_HOST_PAGES)
    req = make_req((1, 2, 3, 4, 5), greedy(20))
    assert planner.admit([req], 5, grows=True)
    planner.launch(prompt_chunk(req))
    planner.join([req])
    assert not planner.spill(req)


def test_what_began_before_a_flush_is_not_cached_after_it() -> None:
    planner, executor, req = begun(caches=True)
    planner.spill(req)
    planner.kv_manager.flush()
    done(planner, executor)
    planner.make_room()
    done(planner, executor)
    for token in (51, 52, 53):
        planner.make_room()
        noted(planner.launch((), planner.decodes()))
        over(planner, executor, token)
    planner.keep(req, "")
    planner.release(req)
    expect_rest(planner)


def test_it_runs_its_margin_before_it_is_preempted_again() -> None:
    planner, executor, req = decoding()
    planner.spill(req)
    over(planner, executor, 52)
    done(planner, executor)
    planner.make_room()
    done(planner, executor)
    assert req.num_resumed == 2


@pytest.mark.parametrize("num_tokens, expected", [(1, True), (20, True), (21, False), (1000, False)])
def test_the_cheaper_way_depends_on_the_size(num_tokens: int, expected: bool) -> None:
    costs = Costs(copy_s=1.0, again_s=1.0, restart_s=20.0)
    assert is_cheaper_on_host(num_tokens, costs) == expected
    planner, _, req = decoding(costs=Costs(1.0, 0.0, 2 * 6 - 0.5))  # it has 6 tokens of KV
    assert not planner.spill(req)
    planner, _, req = decoding(costs=Costs(1.0, 0.0, 2 * 6))
    assert planner.spill(req)


def test_costs_of_a_model_of_8b_on_a_gpu() -> None:
    """128 KiB of KV and 14 GFLOP a token: two copies take 13 us, to compute it takes 70 us."""
    unified = Costs.on("cuda", 131_072, 14e9, moves=False)
    assert unified == Costs(131_072 / 2e10, 14e9 / 2e14, RESTART_S)
    assert is_cheaper_on_host(100_000, unified)
    decode = Costs.on("cuda", 131_072, 14e9, moves=True)
    assert decode.again_s == pytest.approx(unified.again_s + 131_072 / 1e10)
