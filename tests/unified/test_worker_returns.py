"""A unified worker that returns: another core takes over planner and executor, whatever the one before had begun."""

from collections.abc import Callable, Iterator

import pytest

from protocol.messages_gateway import SamplingParams
from scheduler.planning.planner import Planner
from tests.cluster import Cluster
from tests.decode.driving import VOCAB, expect_exact, expect_prefix, expect_rest, greedy, make_cluster, prompt_of
from tests.doubles.clock import VirtualClock
from tests.grammars import grammar_of
from unified.worker import UnifiedWorker

PARAMS = greedy(12)
KNOWN = prompt_of("known", 40)


@pytest.fixture(params=[True, False], ids=["overlap", "serial"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = make_cluster("1U", overlap=request.param, caches=True)
    yield made
    made.close()


def come_back(cluster: Cluster) -> Planner:
    """As worker/lives.py does it."""
    (old,) = cluster.unifieds
    old.reset()
    cluster.run(lambda: not old.loop.busy)
    planner = old.planner
    cluster.unifieds[:] = [UnifiedWorker(planner, "unified-0", VirtualClock(), overlap=cluster._overlap, chunk_size=7)]
    return planner


def is_waiting(worker: UnifiedWorker) -> bool:
    return len(worker._waiting) > 0


def is_computing(worker: UnifiedWorker) -> bool:
    return any(0 < request.reqs[0].num_computed < request.prompt_len for request in worker._computing)


def is_decoding(worker: UnifiedWorker) -> bool:
    return any(len(req.outputs) > 2 for req in worker.planner.roster.all)


@pytest.mark.parametrize("stage", [is_waiting, is_computing, is_decoding])
@pytest.mark.parametrize("n", [1, 3])
def test_nothing_of_the_life_before_is_left_but_the_cache(
    cluster: Cluster, stage: Callable[[UnifiedWorker], bool], n: int
) -> None:
    cluster.assign("known", KNOWN, PARAMS)
    cluster.run()
    for name in ("lost", "also lost"):
        cluster.assign(name, prompt_of(name, 33), PARAMS, n)
    (old,) = cluster.unifieds
    cluster.run(lambda: stage(old))
    planner = come_back(cluster)
    counts = planner.book.counts()
    assert counts.free + counts.cached == counts.total and counts.cached > 0
    for name in ("lost", "also lost"):
        for choice in range(n):
            expect_prefix(cluster, name, prompt_of(name, 33), PARAMS, choice)

    cluster.assign("known again", KNOWN, PARAMS)
    cluster.assign("new", prompt_of("lost", 33), PARAMS, n)
    cluster.run()
    expect_exact(cluster, "known again", KNOWN, PARAMS)
    expect_exact(cluster, "new", prompt_of("lost", 33), PARAMS, n)
    assert cluster.cached["known again"] >= 36 and not cluster.failures
    expect_rest(cluster)


def test_the_next_life_knows_the_grammars_that_the_executor_knows(cluster: Cluster) -> None:
    answers = ((1, 2, 3, 4, 5, 6), (1, 2, 9))
    params = SamplingParams(max_tokens=12, temperature=0.0, eos_token_ids=(VOCAB - 1,), grammar=grammar_of(answers))
    cluster.assign("before", KNOWN, params)
    cluster.run()
    cluster.assign("lost", KNOWN, params)
    cluster.run(lambda: is_decoding(cluster.unifieds[0]))
    planner = come_back(cluster)
    num_learnt = planner.grammars.num_learnt
    cluster.assign("after", KNOWN, params)
    cluster.run()
    assert cluster.answers["after", 0].ids == cluster.answers["before", 0].ids
    assert tuple(cluster.answers["after", 0].ids[:-1]) in answers and not cluster.failures
    assert planner.grammars.num_learnt == num_learnt == 1
    expect_rest(cluster)
