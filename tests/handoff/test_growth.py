"""Contexts that grow in pools too small for all of them: every answer is exact, nobody starves, nothing is lost."""

import pytest

from scheduler.execution.streams import InlineStream
from scheduler.planning.spills import Costs
from tests.cluster import Cluster
from tests.decode.driving import VOCAB, expect_exact, expect_rest, greedy, make_cluster, prompt_of
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import FailAt

SHAPES = [("1P1D", 4), ("1U", 4), ("1P1D", 1), ("2P2D", 4), ("1U", 1)]
UP_TO_50_TOKENS = Costs(copy_s=1, again_s=1, restart_s=50)  # go to host memory


def load(cluster: Cluster, lengths: dict[str, tuple[int, int, int]]) -> None:
    """Serves requests of (prompt tokens, outputs, choices) all at once, and checks their answers."""
    for name, (num_prompt, num_outputs, n) in lengths.items():
        cluster.assign(name, prompt_of(name, num_prompt), greedy(num_outputs), n)
    cluster.run()
    for name, (num_prompt, num_outputs, n) in lengths.items():
        expect_exact(cluster, name, prompt_of(name, num_prompt), greedy(num_outputs), n)
    expect_rest(cluster)


def num_spills(cluster: Cluster) -> float:
    """How often KV went to host memory."""
    return sum(worker.planner.spills.counters["spills"] for worker in cluster.workers)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("topology,page_size", SHAPES)
def test_a_pool_of_a_quarter_of_the_load(topology: str, page_size: int, overlap: bool) -> None:
    num_pages = 1 + 160 // page_size  # tokens, for 8 requests of 80
    cluster = make_cluster(topology, page_size=page_size, num_pages=num_pages, overlap=overlap)
    load(cluster, {f"r{index}": (20, 60, 1) for index in range(8)})
    assert cluster.num_preempted > 0, "the pool is too large to show anything"


@pytest.mark.parametrize("costs", [None, UP_TO_50_TOKENS])
@pytest.mark.parametrize("num_tokens", [100, 1000])
@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_kv_of_preempted_choices_waits_in_host_memory(topology: str, num_tokens: int, costs: Costs | None) -> None:
    num_host_pages, streams = 1 + num_tokens // 4, lambda: (InlineStream(), InlineStream())
    cluster = make_cluster(
        topology, page_size=4, num_pages=1 + 40, num_host_pages=num_host_pages, costs=costs, streams=streams
    )
    load(cluster, {f"r{index}": (20, 60, 1 + index % 2) for index in range(8)})
    assert num_spills(cluster) > 0, "the pool is too large to show anything"
    if topology == "1P1D" and costs is None:  # a unified worker may preempt them before their first token is known
        assert (cluster.num_preempted == 0) == (num_tokens == 1000), "only when host memory is full"


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_a_new_gateway_leaves_nothing_in_host_memory(topology: str) -> None:
    cluster = make_cluster(topology, page_size=4, num_pages=1 + 40, num_host_pages=1 + 200)
    for index in range(5):
        cluster.assign(f"r{index}", prompt_of(f"r{index}", 20), greedy(60))
    cluster.run(until=lambda: num_spills(cluster) > 1)
    for worker in cluster.workers:
        worker.reset()
    cluster.run()
    expect_rest(cluster)


def test_a_launch_that_fails_takes_kv_from_host_memory_with_it() -> None:
    """Those that were in the launch and were preempted behind it fail, and the others go on."""
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=FailAt(60))
    cluster = make_cluster("1U", runner, page_size=4, num_pages=1 + 40, num_host_pages=1 + 200)
    for index in range(5):
        cluster.assign(f"r{index}", prompt_of(f"r{index}", 20), greedy(60))
    cluster.run()
    assert cluster.failures and num_spills(cluster) > 0
    for index in range(5):
        if f"r{index}" not in cluster.failures:
            expect_exact(cluster, f"r{index}", prompt_of(f"r{index}", 20), greedy(60))
    expect_rest(cluster)


@pytest.mark.parametrize("caches", [True, False])
def test_a_margin_makes_those_who_wait_wait_and_preempt_nobody(caches: bool) -> None:
    cluster = make_cluster("1U", page_size=4, num_pages=1 + 40, margin=60, caches=caches)
    load(cluster, {f"r{index}": (20, 60, 1) for index in range(8)})
    assert cluster.num_preempted == 0


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_the_last_one_gets_the_pages_of_a_prompt_that_was_computed_twice(topology: str) -> None:
    cluster = make_cluster(topology, page_size=4, num_pages=1 + 15, caches=True)
    system = prompt_of("system", 20)
    prompts = {"a": [*system, 1, 2, 3, 4], "b": [*system, 5, 6, 7, 8]}
    lengths = {"a": 3, "b": 33}  # b needs 14 pages in the end
    for name, prompt in prompts.items():
        cluster.assign(name, prompt, greedy(lengths[name]))
    cluster.run()
    for name, prompt in prompts.items():
        expect_exact(cluster, name, prompt, greedy(lengths[name]))
    expect_rest(cluster)
