"""Answers follow their grammars on every schedule: beside other rows, with late masks, drafts, retraction, replays."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.decode.driving import VOCAB
from tests.doubles.strategies import Strategy
from tests.explore.expected import expected
from tests.explore.run import Run
from tests.explore.workload import Arrival, Workload
from tests.grammars import may_follow, with_grammar

DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "chain": {"num_steps": 3},
    "tree": {"num_steps": 3, "tree": (3, 8)},
    "layers": {"num_steps": 2, "num_layers": 2},
    "varied": {"num_steps": 3, "varied_steps": 5},
}


SEEDED = [each for each in Strategy if each is not Strategy.EXHAUSTIVE]
SHORT, LONG = range(1, 11), range(12, 30)


def followed(
    seed: int, workload: Workload, share: float = 0.7, lengths: range = SHORT, slow_masks: float = 0.0
) -> Workload:
    """Most requests have grammars; some go on from an earlier attempt."""
    rng, arrivals = random.Random(seed), list[Arrival]()
    for arrival in workload.arrivals:
        if rng.random() > share:
            arrivals.append(arrival)
            continue
        params = with_grammar(rng, arrival.params, VOCAB, lengths)
        tokens, _ = expected(arrival.prompt, params, 0)
        num_replayed = min(rng.choice((0, 2)), len(tokens) - 1, len(arrival.prompt) - 1)
        alone = arrival.num_choices == 1
        arrivals.append(replace(arrival, params=params, num_replayed=num_replayed if alone else 0))
    return replace(workload, arrivals=tuple(arrivals), late_masks=0.3, slow_masks=slow_masks)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("topology", ("1U", "1P1D"))
def test_answers_follow_their_grammars_on_every_schedule(topology: str, draft: str) -> None:
    num_ended = 0
    for seed, strategy in enumerate((Strategy.LATE, Strategy.EARLY, Strategy.RANDOM)):
        workload = replace(Workload.random(seed, 6), topology=topology, failing=0.0, overlap=True)
        layers = DRAFTS[draft].get("num_layers", 1)
        largest = max(each.num_pages(workload.page_size, layers) for each in workload.arrivals)
        workload = replace(workload, num_pages=max(workload.num_pages, 1 + largest), **DRAFTS[draft])
        run = Run(followed(seed, workload), strategy, seed)
        run.run()
        num_ended += sum(bool(answer.finish) for answer in run.cluster.answers.values())
    assert num_ended > 9


@pytest.mark.parametrize("host_memory", (True, False))
@pytest.mark.parametrize("seed", range(2))
def test_answers_that_give_way_follow_their_grammars(seed: int, host_memory: bool) -> None:
    """Their KV goes to host memory, or they begin again with their outputs."""
    workload = followed(seed, Workload.spilling(seed), 1.0, LONG)
    run = Run(workload if host_memory else replace(workload, num_slots=0), Strategy.RANDOM, seed)
    run.run()
    assert (run.num_spills if host_memory else run.cluster.num_retracted) > 0


@pytest.mark.parametrize("seed", range(6))
def test_failures_and_cancels_beside_grammars(seed: int) -> None:
    run = Run(followed(seed, Workload.random(seed, 8)), Strategy.RANDOM, seed)
    run.run()
    assert run.num_steps > 0


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("topology", ("1U", "1P1D"))
@pytest.mark.parametrize("overlap", (True, False))
def test_late_rows_sit_out_and_draw_the_same_tokens(topology: str, draft: str, overlap: bool) -> None:
    """On every strategy; clients leave, launches fail, choices are spilled or begin again meanwhile."""
    num_late = 0
    for seed, strategy in enumerate(SEEDED):
        workload = replace(Workload.random(seed, 6), topology=topology, overlap=overlap)
        layers = DRAFTS[draft].get("num_layers", 1)
        largest = max(each.num_pages(workload.page_size, layers) for each in workload.arrivals)
        workload = replace(workload, num_pages=max(workload.num_pages, 1 + largest), **DRAFTS[draft])
        run = Run(followed(seed, workload, slow_masks=0.4), strategy, seed)
        run.run()
        num_late += run.num_late
    assert num_late > 9


@pytest.mark.parametrize("seed", range(3))
def test_late_rows_give_way_and_come_back(seed: int) -> None:
    workload = followed(seed, Workload.spilling(seed), 1.0, LONG, slow_masks=0.4)
    run = Run(workload if seed else replace(workload, num_slots=0), Strategy.RANDOM, seed)
    run.run()
    assert run.num_late > 9 and (run.num_spills if seed else run.cluster.num_retracted) > 0


def test_late_rows_of_a_rank_hold_no_other_rank_up() -> None:
    num_late = 0
    for seed, strategy in enumerate(SEEDED, 2):
        run = Run(followed(seed, Workload.grouped(seed), slow_masks=0.4), strategy, seed)
        run.run()
        num_late += run.num_late
    assert num_late > 9


def test_grammars_change_tokens() -> None:
    arrival, rng = Workload.random(0).arrivals[0], random.Random(5)
    plain = replace(arrival.params, rules=None, eos_token_ids=(), min_tokens=0, temperature=0.0, max_tokens=30)
    params = with_grammar(rng, plain, VOCAB, SHORT)
    tokens, reason = expected(arrival.prompt, params, 0)
    assert reason == "stop" and tokens[-1] in params.eos_token_ids
    assert all(token in may_follow(tokens[:place], params) for place, token in enumerate(tokens))
    assert tokens != expected(arrival.prompt, plain, 0)[0][: len(tokens)]
