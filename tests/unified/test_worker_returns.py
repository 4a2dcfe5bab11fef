"""A unified worker that returns: another core takes over planner and executor, whatever the one before had begun."""

from collections.abc import Iterator

import pytest

from protocol.messages_gateway import SamplingParams
from scheduler.planning.planner import Planner
from tests.decode.driving import VOCAB, Driven, Phase, drive_to, expect_rest, greedy, make_cluster, prompt_of
from tests.doubles.clock import VirtualClock
from tests.doubles.page_ledger import is_at_rest
from tests.grammars import grammar_of
from unified.worker import UnifiedWorker

PARAMS = greedy(12)
KNOWN = prompt_of("known", 40)


@pytest.fixture(params=[True, False], ids=["overlap", "serial"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Driven]:
    made = make_cluster("1U", overlap=request.param, caches=True)
    yield made
    made.close()


def come_back(cluster: Driven) -> Planner:
    """As worker/lives.py does it."""
    old = cluster.unified
    old.reset()
    cluster.run(lambda: not old.loop.busy)
    planner = old.planner
    cluster.unifieds[:] = [UnifiedWorker(planner, "unified-0", VirtualClock(), cluster._policies)]
    return planner


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.PREFILLING, Phase.DECODING], ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_nothing_of_the_life_before_is_left_but_the_cache(cluster: Driven, phase: Phase, n: int) -> None:
    cluster.ask("known", KNOWN, PARAMS)
    cluster.run()
    for name in ("lost", "also lost"):
        cluster.ask(name, 33, PARAMS, n)
    drive_to(cluster, "lost", phase)
    planner = come_back(cluster)
    cluster.run()  # launches are over, copies may not be
    assert is_at_rest(planner) and planner.kv_manager.counts().cached > 0

    cluster.ask("known again", KNOWN, PARAMS)
    cluster.ask("new", cluster.asked["lost"][0], PARAMS, n)
    cluster.run()
    assert cluster.cached["known again"] >= 36
    cluster.expect_end("lost", "also lost")


def test_the_next_life_knows_the_grammars_that_the_executor_knows(cluster: Driven) -> None:
    answers = ((1, 2, 3, 4, 5, 6), (1, 2, 9))
    params = SamplingParams(max_tokens=12, temperature=0.0, eos_token_ids=(VOCAB - 1,), grammar=grammar_of(answers))
    cluster.ask("before", KNOWN, params)
    cluster.run()
    cluster.ask("lost", KNOWN, params)
    drive_to(cluster, "lost", Phase.DECODING)
    planner = come_back(cluster)
    num_learnt = planner.grammars.num_learnt
    cluster.ask("after", KNOWN, params)
    cluster.run()
    assert cluster.answers["after", 0].ids == cluster.answers["before", 0].ids
    assert tuple(cluster.answers["after", 0].ids[:-1]) in answers and not cluster.failures
    assert planner.grammars.num_learnt == num_learnt == 1
    expect_rest(cluster)
