"""Which launches are plain: those of a rest, and those of rows and prompts that have no draft."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from protocol.messages_gateway import FinishReason
from protocol.prefixes import packed
from scheduler.plan import Plan, WriteDraft
from scheduler.planning.kv_manager import CacheKey
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from tests.scheduler.building import greedy, make_req, prompt_chunk
from tests.scheduler.remembering import Remembers, finish, make
from tests.scheduler.speculating import rest

GRAMMAR = replace(greedy(9), grammar="g")
PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9)


def drafting(lookahead: int = 1) -> tuple[Planner, Remembers]:
    return make(lookahead=lookahead, caches=True, num_host_pages=16)


def key_of(prompt: tuple[int, ...] = PROMPT) -> CacheKey:
    return CacheKey(packed(prompt), "")


def begun(planner: Planner, executor: Remembers, name: str = "r", grammar: bool = False) -> Req:
    """A request that decodes from the next launch on. Its prompt is in the cache."""
    req = make_req(PROMPT, GRAMMAR if grammar else greedy(9), name=name)
    assert planner.admit([req], req.prompt_len + 9, key=key_of(), grows=True)
    planner.launch(prompt_chunk(req, req.num_computed), planner.decodes())
    planner.join([req])
    finish(planner, executor)
    planner.kv_manager.keep(req.held, key_of())
    return req


def launch(planner: Planner, executor: Remembers) -> Plan:
    planner.launch((), planner.decodes())
    plan = executor.plan
    finish(planner, executor)
    return plan


def test_a_rest_begins_behind_the_drafts_kv_that_waits_and_takes_all_drafts() -> None:
    planner, executor = drafting()
    planner.speculation.next_steps = lambda *_: 0  # type: ignore[method-assign]
    req = begun(planner, executor)
    assert launch(planner, executor).drafts and req.held.has_draft
    rest(planner)
    assert not launch(planner, executor).drafts and not req.held.has_draft
    assert [type(operation) for operation in executor.sent[-3:]] == [Plan, WriteDraft, Plan]
    assert not launch(planner, executor).drafts and isinstance(executor.sent[-2], Plan), "nothing waits any more"

    planner.speculation.rests = False
    assert not launch(planner, executor).drafts, "its only row has no draft"
    begun(planner, executor, "other")
    assert launch(planner, executor).drafts
    assert planner.counters["spec_plain_launches"] == 3


def test_prompts_of_a_rest_have_no_draft_and_find_what_is_cached() -> None:
    planner, executor = drafting()
    first = begun(planner, executor)
    first.finish = FinishReason.LENGTH
    planner.release(first)
    planner.speculation.rests = True
    req = begun(planner, executor, "other")
    assert req.held.num_cached == 8 and not req.held.has_draft and not executor.plan.drafts
    assert not launch(planner, executor).joins[0].draw.drafts


def test_a_choice_that_returns_from_host_memory_in_a_rest_has_no_draft_any_more() -> None:
    planner, executor = drafting()
    req = begun(planner, executor)
    for token in (5, 6):
        launch(planner, executor)
        req.append((token,))
    assert planner.spill(req)
    planner.speculation.rests = True
    for _ in range(9):
        if req.holding is not None:
            break
        done = [operation for operation in executor.sent if not isinstance(operation, Plan)]
        planner.copies.done(done[-1].ticket)  # type: ignore[union-attr]
        planner.make_room()
        planner.poll()
    assert req.holding is not None and not req.held.has_draft


@pytest.mark.parametrize("ships", [True, False])
def test_prompts_in_grammars_alone_are_plain_unless_they_are_sent(ships: bool) -> None:
    """A worker that sends KV sends the draft's, too."""
    planner, executor = drafting()
    req = make_req(PROMPT, GRAMMAR)
    assert planner.admit([req], req.prompt_len, grows=not ships)
    planner.launch(prompt_chunk(req), ships=ships)
    assert executor.plan.drafts == ships == req.held.has_draft


def test_without_a_draft_prompts_in_grammars_share_what_is_cached_with_all_others() -> None:
    planner, executor = drafting(lookahead=0)
    begun(planner, executor, grammar=True)
    assert begun(planner, executor, "other").held.num_cached == 8
    assert "spec_plain_launches" not in planner.counters


@pytest.mark.parametrize("rests", [True, False])
def test_an_idle_batch_is_plain_in_a_rest_only_and_never_counts_as_such(rests: bool) -> None:
    planner, executor = drafting()
    planner.speculation.rests = rests
    assert launch(planner, executor).drafts is not rests and planner.counters["spec_plain_launches"] == 0


@pytest.mark.parametrize(("has_draft", "outcome"), [(True, False), (False, True)])
def test_a_choice_without_a_draft_may_leave_for_host_memory_before_it_has_decoded(
    has_draft: bool, outcome: bool
) -> None:
    planner, executor = drafting()
    planner.speculation.rests = not has_draft
    req = begun(planner, executor)
    req.append((5,))
    assert not req.has_begun and planner.spill(req) == outcome


@pytest.mark.parametrize(("has_draft", "num_redrawn"), [(True, 2), (False, 0)])
def test_only_a_draft_of_several_layers_has_outputs_drawn_once_more(has_draft: bool, num_redrawn: int) -> None:
    planner, executor = drafting(lookahead=3)
    planner.speculation.rests = not has_draft
    req = begun(planner, executor)
    req.append((5,))
    for token in (6, 7, 8):
        launch(planner, executor)
        req.append((token,))
    assert planner.spill(req) and planner.spills.num_redrawn(req) == num_redrawn


def test_a_prompt_counts_as_cached_only_what_it_would_find() -> None:
    """It has a draft, unless the draft rests or its answer follows a grammar."""
    planner, executor = drafting()
    planner.speculation.rests = True
    begun(planner, executor)
    plain, grammar = make_req(PROMPT, greedy(9)), make_req(PROMPT, GRAMMAR)
    assert [planner.num_cached(req, key_of(), grows=True) for req in (plain, grammar)] == [8, 8]
    planner.speculation.rests = False
    assert [planner.num_cached(req, key_of(), grows=True) for req in (plain, grammar)] == [0, 8]
    begun(planner, executor, "other")
    assert planner.num_cached(plain, key_of(), grows=True) == 8, (
        "its pages have taken the places of those without a draft"
    )


def test_a_prompt_counts_as_cached_what_it_finds_when_it_is_admitted_in_the_same_way() -> None:
    """Also if it decodes elsewhere, comes without the draft's KV, or with other pages than ours."""
    rng, seen = random.Random(3), Counter[str]()
    planner, _ = make(lookahead=1, caches=True)
    held = list[Req]()
    for number in range(2000):
        planner.speculation.rests = rng.random() < 0.6
        prompt = (rng.randrange(2),) * rng.randrange(1, 20) + (2,) * rng.randrange(4)
        how: dict[str, Any] = {
            "grows": rng.random() < 0.7,
            "has_draft": rng.random() < 0.7,
            "alignment": rng.choice((0, 4, 8)),
        }
        key = key_of(prompt) if rng.random() < 0.9 else None
        req = make_req(prompt, rng.choice((GRAMMAR, greedy(9))), name=f"r{number}")
        told = planner.num_cached(req, key, **how)
        seen["without a key"] += key is None
        seen["some"] += told > 0
        seen["by the draft"] += told > planner.num_cached(req, key)

        if planner.admit([req], req.prompt_len, key=key, **how):
            assert told == req.held.num_cached, (prompt, how)
            planner.kv_manager.keep(req.held, key_of(prompt))
            held.append(req)
        if len(held) > rng.randrange(8):
            planner.release(held.pop(rng.randrange(len(held))))
        planner.collect()
    assert min(seen.values()) > 50 and len(seen) == 3, seen
