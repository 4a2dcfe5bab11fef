"""Requests with rules, grammars or log-probabilities: no schedule changes their answers, whatever draft there is."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from protocol.logit_rules import LogitRules
from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import SamplingParams
from tests.decode.driving import VOCAB
from tests.doubles.strategies import Strategy
from tests.explore.expected import expected
from tests.explore.run import Run
from tests.explore.workload import Arrival, Workload, with_scored_prompts
from tests.grammars import may_follow, with_grammar
from tests.ruling import with_rules
from tests.selecting import broad

DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "chain": {"num_steps": 3},
    "tree": {"num_steps": 3, "tree": (3, 8)},
    "layers": {"num_steps": 2, "num_layers": 2},
    "varied": {"num_steps": 3, "varied_steps": 5},
}
SHORT, LONG = range(1, 11), range(12, 30)  # tokens of answers in a grammar
Ask = Callable[[random.Random, SamplingParams], SamplingParams]


def drafting(workload: Workload, num_layers: int = 1, **draft: Any) -> Workload:
    """The same with a draft. Each request still fits."""
    largest = max(each.num_pages(workload.page_size, num_layers) for each in workload.arrivals)
    return replace(workload, num_pages=max(workload.num_pages, 1 + largest), num_layers=num_layers, **draft)


def endless(params: SamplingParams, **more: Any) -> SamplingParams:
    return replace(params, eos_token_ids=(), min_tokens=0, **more)


def changed(seed: int, workload: Workload, ask: Ask, share: float = 1.0) -> Workload:
    """Such a share of the requests asks for more. Some of them go on from an earlier attempt."""
    rng, arrivals = random.Random(seed), list[Arrival]()
    for arrival in workload.arrivals:
        if rng.random() <= share:
            arrival = replace(arrival, params=ask(rng, arrival.params), num_replayed=0)
            if arrival.num_choices == 1:
                tokens, _ = expected(arrival.prompt, arrival.params, 0)
                most = min(rng.choice((0, 2)), len(tokens) - 1, len(arrival.prompt) - 1)
                arrival = replace(arrival, num_replayed=most)
        arrivals.append(arrival)
    return replace(workload, arrivals=tuple(arrivals))


def few_tokens(rng: random.Random, params: SamplingParams) -> SamplingParams:
    """Rules that read the context. Each rule that is forgotten, or read from another context, changes tokens."""
    params = with_rules(rng, endless(params), VOCAB)
    assert params.rules is not None
    few = tuple(rng.sample(range(VOCAB), 4))
    rules = replace(params.rules, allowed_token_ids=few, bad_words=((few[0], few[1]),), frequency_penalty=0.5)
    return replace(params, rules=rules)


def ruled(seed: int, workload: Workload) -> Workload:
    return changed(seed, workload, few_tokens)


def followed(
    seed: int, workload: Workload, *, share: float = 0.7, lengths: range = SHORT, slow_masks: float = 0.0
) -> Workload:
    found = changed(seed, workload, lambda rng, params: with_grammar(rng, params, VOCAB, lengths), share)
    return replace(found, late_masks=0.3, slow_masks=slow_masks)


def asking(seed: int, workload: Workload) -> Workload:
    """Most requests ask, each for its own number of tokens; hot ones, so that rows differ."""
    rng = random.Random(seed)
    asked = [rng.choice((None, LogprobsAsked(4), LogprobsAsked(1), LogprobsAsked(2, True))) for _ in workload.arrivals]
    arrivals = [
        replace(each, params=endless(each.params, logprobs=wanted))
        for each, wanted in zip(workload.arrivals, asked, strict=True)
    ]
    return replace(workload, arrivals=tuple(arrivals))


def scored(seed: int, workload: Workload) -> Workload:
    """Most requests ask, each for its own number of tokens. Prompts are cached, and cut into chunks."""
    wanted = with_scored_prompts(random.Random(seed), workload, 1)
    return replace(wanted, caches=True, chunk_size=(5, 9, 64)[seed % 3])


def num_ended(run: Run) -> int:
    return sum(bool(answer.finish) for answer in run.cluster.answers.values())


class Kind(NamedTuple):
    """What requests ask for, and how much of it a run has shown. `seeds` of workloads in which much of it is there."""

    ask: Callable[[int, Workload], Workload]
    count: Callable[[Run], int]
    seeds: tuple[int, int] = (0, 2)


SLOW = partial(followed, slow_masks=0.4)
LATE = partial(SLOW, share=1.0, lengths=LONG)
KINDS = {
    "rules": Kind(ruled, num_ended),
    "grammars": Kind(followed, num_ended),
    "late masks": Kind(SLOW, lambda run: run.num_late),
    "log-probabilities": Kind(asking, lambda run: sum(bool(each.logprobs) for each in run.cluster.answers.values())),
    "of prompts": Kind(scored, lambda run: sum(bool(each.found) for each in run.cluster.prompts.values()), (4, 10)),
}


TOPOLOGIES = ("1U", "1P1D")
CASES = [  # of the two topologies, each kind with each draft has one here, the other in `make test-slow`
    case if (index + number) % 2 == place else broad(case)
    for index, kind in enumerate(KINDS)
    for number, draft in enumerate(DRAFTS)
    for place, topology in enumerate(TOPOLOGIES)
    for case in ((kind, topology, draft),)
]


@pytest.mark.parametrize(("kind", "topology", "draft"), CASES)
def test_answers_on_every_schedule(kind: str, topology: str, draft: str) -> None:
    """Clients leave meanwhile, and choices are spilled or begin again. Every second case has the serial twin, too."""
    ask, count, seeds = KINDS[kind]
    found, is_serial = 0, (list(DRAFTS).index(draft) + len(topology)) % 2
    for seed, strategy in zip(seeds, (Strategy.LATE, Strategy.RANDOM), strict=True):
        overlap = not (is_serial and strategy is Strategy.RANDOM)
        workload = replace(Workload.random(seed, 6), topology=topology, failing=0.0, overlap=overlap)
        found += count(Run(ask(seed, drafting(workload, **DRAFTS[draft])), strategy, seed).run())
    assert found > 2


@pytest.mark.parametrize(
    ("ask", "seed", "num_layers", "has_host_memory"),
    [
        *((ruled, seed, 0, True) for seed in (0, 1)),
        *((partial(followed, share=1.0, lengths=LONG), seed, 0, seed > 0) for seed in (0, 1)),
        *((LATE, seed, 0, seed > 0) for seed in (0, 1)),
        # With three layers, on these seeds, a launch draws outputs once more and new ones in one run.
        *((asking, seed, num_layers, True) for num_layers, seed in ((0, 0), (2, 2), (3, 1), (3, 6))),
        *((scored, seed, 0, seed == 0) for seed in (0, 2)),
    ],
)
def test_answers_of_preempted_requests(
    ask: Callable[[int, Workload], Workload], seed: int, num_layers: int, has_host_memory: bool
) -> None:
    """Their KV goes to host memory, or they begin again with their outputs."""
    workload = Workload.spilling(seed)
    if num_layers:
        workload = drafting(workload, num_layers, num_steps=num_layers)
    workload = ask(seed, workload if has_host_memory else replace(workload, num_host_pages=0))
    run = Run(workload, Strategy.RANDOM, seed).run()
    assert (run.num_spills if has_host_memory else run.cluster.num_preempted) > 0
    assert run.num_late > 9 or ask is not LATE


def test_failures_and_cancels_beside_grammars() -> None:
    runs = [Run(followed(seed, Workload.random(seed, 8)), Strategy.RANDOM, seed).run() for seed in (6, 7, 9)]
    assert sum(run.failures.num_failed for run in runs) and any(run.left for run in runs)


@pytest.mark.parametrize(("ask", "seeds"), [(SLOW, (2, 5)), (scored, (1, 4))], ids=["late", "scored"])
def test_answers_in_groups_of_ranks(ask: Callable[[int, Workload], Workload], seeds: tuple[int, int]) -> None:
    """A rank whose rows are late holds no other rank up."""
    found = 0
    for seed, strategy in zip(seeds, (Strategy.LATE, Strategy.RANDOM), strict=True):
        workload = replace(Workload.grouped(seed, 4), failing=0.0, unbuilt=0.0)
        run = Run(ask(seed, workload), strategy, seed).run()
        found += run.num_late + sum(bool(prompt.found) for prompt in run.cluster.prompts.values())
    assert found > 2


@pytest.mark.parametrize("forbidden", ["model.sampler.score", "scheduler.execution.launches.scored_forward"])
def test_a_batch_in_which_nobody_asks_scores_none(forbidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("log-probabilities were computed that no request asks for")

    monkeypatch.setattr(forbidden, fail)
    workload = changed(0, Workload.random(0, 6), lambda rng, params: replace(params, logprobs=None))
    run = Run(replace(workload, failing=0.0), Strategy.RANDOM, 0).run()
    assert not run.cluster.failures


def test_rules_and_grammars_change_tokens() -> None:
    arrival = Workload.random(0).arrivals[0]
    plain = endless(arrival.params, rules=None, temperature=0.0, max_tokens=30)
    unchanged, _ = expected(arrival.prompt, plain, 0)
    few = LogitRules(allowed_token_ids=(3, 5), bad_words=((3, 3), (5, 5)))
    tokens, _ = expected(arrival.prompt, replace(plain, rules=few), 0)
    assert set(tokens) == {3, 5} and all(one != other for one, other in pairwise(tokens)) and tokens != unchanged

    params = with_grammar(random.Random(5), plain, VOCAB, SHORT)
    tokens, reason = expected(arrival.prompt, params, 0)
    assert reason == "stop" and tokens[-1] in params.eos_token_ids and tokens != unchanged[: len(tokens)]
    assert all(token in may_follow(tokens[:place], params) for place, token in enumerate(tokens))
