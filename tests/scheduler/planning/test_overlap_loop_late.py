"""Neighbours go on while a mask is held; the slow answer still ends with its tokens, or fails alone."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from llguidance import LLMatcher

from model.runner import Runner
from protocol.grammar import grammar_name
from protocol.messages_gateway import SamplingParams
from runtime.grammars import Matching
from scheduler.execution.answers import BASE_S, LAUNCH_S
from scheduler.execution.grammars import AnswerGrammars
from tests.decode.driving import VOCAB, expect_exact, expect_rest, greedy, make_cluster, prompt_of
from tests.doubles.clock import VirtualClock
from tests.doubles.held_pool import HeldPool
from tests.grammars import _TEXTS, grammars_for, spelt

Panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
EOS, A = VOCAB - 1, spelt([1])
KINDS = {
    "a long text": LLMatcher.grammar_from_lark(f"start: {json.dumps(A * 3000)}"),
    "a long pattern": LLMatcher.grammar_from_regex("(" + f"[{A}]" * 500 + "){1,9}"),
    "an ambiguous one": LLMatcher.grammar_from_lark(f'start: e\ne: e e e | e e | "{A}"\n'),
    "one that is ambiguous at its end": LLMatcher.grammar_from_lark(f'start: "{A}" e\ne: e? e | "{A}" e | "{A}"\n'),
    "many texts": LLMatcher.grammar_from_lark(
        "start: " + " | ".join(json.dumps(spelt([1, index % 70, index // 70]) * 9) for index in range(300))
    ),
}


class SlowWork(VirtualClock):
    """A clock of work on which each piece takes `slow_s`."""

    slow_s, num_looks = 0.0, 0

    def now(self) -> float:
        self.num_looks += 1
        self.advance(self.slow_s)
        return super().now()


class Slow:
    """A worker whose masks take `slow_s`, with those of late rows held."""

    def __init__(self, topology: str, slow_s: float, **more: Any) -> None:
        self.works: list[SlowWork] = []
        self.pools: list[HeldPool] = []
        self.cluster = make_cluster(topology, grammars=partial(self._grammars, slow_s), **more)

    def _grammars(self, slow_s: float, runner: Runner) -> AnswerGrammars:
        self.pools.append(HeldPool())
        self.works.append(SlowWork())
        self.works[-1].slow_s = slow_s
        return grammars_for(runner, None, self.pools[-1], self.works[-1])

    @property
    def num_held(self) -> int:
        return sum(len(pool.held) for pool in self.pools)

    @property
    def num_late(self) -> int:
        return sum(len(worker.planner.late.reqs) for worker in self.cluster.workers)

    def let_go(self) -> None:
        for pool in self.pools:
            while pool.held:
                pool.let_go()

    def run(self) -> None:
        def is_over() -> bool:
            self.let_go()
            return self.cluster.at_rest()

        self.cluster.run(until=is_over)


def follow(kind: str, max_tokens: int = 12) -> SamplingParams:
    name = grammar_name(KINDS[kind])
    _TEXTS[name] = KINDS[kind]
    return greedy(max_tokens, eos_token_ids=(EOS,), ignore_eos=True, grammar=name)


@pytest.mark.parametrize("topology", ("1U", "1P1D"))
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_end_while_a_mask_is_held_and_the_slow_answer_goes_on(topology: str, kind: str) -> None:
    quick = Slow(topology, 0.0)
    quick.cluster.ask("slow", 9, follow(kind), n=2)
    quick.run()
    expected = [quick.cluster.answers["slow", choice].ids for choice in range(2)]
    assert all(len(ids) == 12 for ids in expected)

    held = Slow(topology, LAUNCH_S * 2)
    held.cluster.ask("slow", 9, follow(kind), n=2)
    held.cluster.run(until=lambda: held.num_late == 2)
    plain = greedy(40)
    held.cluster.ask("plain", 9, plain, n=2)
    held.cluster.run(until=lambda: all(held.cluster.answers["plain", choice].finish for choice in range(2)))
    expect_exact(held.cluster, "plain", *held.cluster.asked["plain"], n=2)
    assert (held.num_held, held.num_late) == (1, 2) and sum(
        worker.stats().running for worker in held.cluster.workers
    ) >= 1

    held.run()
    assert [held.cluster.answers["slow", choice].ids for choice in range(2)] == expected
    expect_rest(held.cluster)


@pytest.mark.parametrize("overlap", (True, False))
def test_a_worker_whose_rows_are_all_late_launches_nothing_and_goes_on_when_a_mask_is_made(overlap: bool) -> None:
    held = Slow("1U", LAUNCH_S * 2, overlap=overlap)
    held.cluster.ask("slow", 9, follow("an ambiguous one"))
    held.cluster.run(until=lambda: held.num_held == 1)
    [worker] = held.cluster.workers
    while worker.turn():
        pass
    num_launches = worker.planner.num_launches
    assert not any(worker.turn() for _ in range(9)) and worker.planner.num_launches == num_launches
    assert not held.cluster.at_rest() and not worker.busy

    held.let_go()
    assert worker.turn() and worker.planner.num_launches == num_launches + 1


@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_an_answer_beyond_its_budget_fails_alone(topology: str) -> None:
    slow = Slow(topology, BASE_S * 0.3)  # to read a token, and as much again for its mask
    slow.cluster.ask("slow", 9, follow("an ambiguous one"))
    slow.cluster.ask("plain", 9, greedy(20))
    slow.run()
    failure = slow.cluster.failures["slow"]
    assert failure.code == "grammar_fault" and "takes too much work: 2.4 s of work for 2 tokens" in failure.message
    expect_exact(slow.cluster, "plain", *slow.cluster.asked["plain"])
    expect_rest(slow.cluster)


@pytest.mark.parametrize("slow_s", (0.0, LAUNCH_S * 2), ids=("in a launch", "beside"))
@pytest.mark.parametrize("error", (RuntimeError("a bug"), Panic("a bug")), ids=repr)
def test_a_mask_that_cannot_be_made_fails_its_request_alone(
    slow_s: float, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, faulty, num_raised = Matching.read, follow("an ambiguous one"), 0

    def read_or_raise(matching: Matching, tokens: Sequence[int]) -> None:
        nonlocal num_raised
        if matching.late:
            num_raised += 1
            raise error
        read(matching, tokens)

    slow, good = Slow("1U", slow_s), replace(follow("a long text"), ignore_eos=False)
    slow.cluster.ask("slow", 9, faulty)
    slow.cluster.ask("good", 9, good)
    monkeypatch.setattr(Matching, "read", read_or_raise)
    slow.run()
    assert num_raised == 1
    assert slow.cluster.failures["slow"].code == "grammar_fault"
    assert f"its mask cannot be made: {type(error).__name__}" in slow.cluster.failures["slow"].message
    assert len(slow.cluster.answers["good", 0].ids) == 12
    expect_rest(slow.cluster)


REPLAYED = 150


def slow_answer(max_tokens: int = REPLAYED + 6) -> tuple[SamplingParams, list[int]]:
    """An answer in a grammar, to its end."""
    params, quick = follow("a long text", max_tokens), Slow("1U", 0.0)
    quick.cluster.ask("slow", 9, params)
    quick.run()
    ids = quick.cluster.answers["slow", 0].ids
    assert len(ids) == max_tokens
    return params, ids


@pytest.mark.parametrize("caches", (False, True))
@pytest.mark.parametrize("slow_s", (0.0, LAUNCH_S * 2), ids=("quick", "slow"))
@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_neighbours_never_wait_while_the_outputs_of_an_earlier_attempt_are_read(
    topology: str, slow_s: float, caches: bool
) -> None:
    """Neither rows that decode, nor prompts that come, also such as begin like the one that waits."""
    params, ids = slow_answer()
    held, prompt = Slow(topology, slow_s, caches=caches), prompt_of("slow", 9)
    held.cluster.ask("before", 9, greedy(40))
    held.cluster.assign("slow", prompt, params, replayed=ids[:REPLAYED])
    held.cluster.run(until=lambda: held.num_held == 1)
    held.cluster.ask("plain", 30, greedy(20), n=2)
    held.cluster.assign("alike", [*prompt, *ids[:40], 7], greedy(20))
    held.cluster.run(until=lambda: all(held.cluster.answers[name, 0].finish for name in ("before", "plain", "alike")))
    expect_exact(held.cluster, "before", *held.cluster.asked["before"])
    expect_exact(held.cluster, "plain", *held.cluster.asked["plain"], n=2)
    expect_exact(held.cluster, "alike", [*prompt, *ids[:40], 7], greedy(20))
    assert held.num_held == 1 and held.cluster.answers["slow", 0].ids == ids[:REPLAYED]

    held.run()
    assert held.cluster.answers["slow", 0].ids == ids
    if not caches:
        expect_rest(held.cluster)


@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_outputs_that_do_not_fit_the_grammar_fail_their_request_alone(topology: str) -> None:
    params, ids = slow_answer()
    slow = Slow(topology, 0.0)
    slow.cluster.assign("slow", prompt_of("slow", 9), params, replayed=[*ids[:REPLAYED], 2])
    slow.cluster.ask("plain", 9, greedy(20))
    slow.run()
    assert "cannot go on in its grammar with token 2" in slow.cluster.failures["slow"].message
    expect_exact(slow.cluster, "plain", *slow.cluster.asked["plain"])
    expect_rest(slow.cluster)
