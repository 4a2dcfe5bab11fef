"""Prompts that begin the same way: the same tokens as without a cache, and less to compute. The model hashes the KV
that it reads, so a wrong page changes every token after it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from protocol.prefixes import packed
from scheduler.execution.executor import Executor
from scheduler.plan import Operation, Outcome, Plan
from scheduler.planning.kv_manager import CacheKey
from scheduler.planning.planner import Executes
from testkit.device_on_host import HostCopies
from tests.cluster import Cluster
from tests.decode.driving import expect_exact, expect_rest, greedy, make_cluster, prompt_of
from tests.doubles.backend_inproc import InprocNetwork

SYSTEM = prompt_of("system", 40)


class Computed:
    """Counts the prompt tokens that executors are told to compute."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def wrap(self, executor: Executor) -> Executes:
        """Counts for one more executor."""
        return Counted(self, executor)

    def during(self, act: Callable[[], object]) -> int:
        """The prompt tokens computed while `act` runs."""
        before = self.num_tokens
        act()
        return self.num_tokens - before


@dataclass
class Counted:
    """Passes operations on to an executor."""

    computed: Computed
    executor: Executor

    def submit(self, operation: Operation) -> None:
        if isinstance(operation, Plan):
            self.computed.num_tokens += sum(len(chunk.ids) for chunk in operation.chunks)
        self.executor.submit(operation)

    def poll(self) -> Sequence[Outcome]:
        return self.executor.poll()


@pytest.fixture(params=["1P1D", "1U", "1P1D-mirrored", "1P1D-serial", "1P1D-small-pages-at-decode"])
def served(request: pytest.FixtureRequest) -> tuple[Cluster, Computed]:
    topology, _, kind = request.param.partition("-")
    kinds: dict[str, dict[str, Any]] = {
        "": {},
        "mirrored": {"mirrored": True},
        "serial": {"overlap": False},
        "small-pages-at-decode": {"decode_page_size": 2, "num_pages": 512},
    }
    computed = Computed()
    return make_cluster(topology, caches=True, wrap=computed.wrap, **kinds[kind]), computed


def serve(cluster: Cluster, name: str, prompt: list[int], max_tokens: int = 6, n: int = 1, **more: Any) -> list[int]:
    """Serves one request to its end, checks its tokens, and returns those of its first choice."""
    cluster.assign(name, prompt, greedy(max_tokens), n, **more)
    cluster.run()
    expect_exact(cluster, name, prompt, greedy(max_tokens), n)
    return cluster.answers[name, 0].ids


def test_the_second_prompt_computes_only_what_is_new(served: tuple[Cluster, Computed]) -> None:
    cluster, computed = served
    assert computed.during(lambda: serve(cluster, "a", [*SYSTEM, 1, 2, 3])) == 43
    assert computed.during(lambda: serve(cluster, "b", [*SYSTEM, 4, 5, 6])) == 3
    assert cluster.cached == {"b": 40}


def test_many_at_once_share_what_one_has_computed(served: tuple[Cluster, Computed]) -> None:
    cluster, computed = served
    serve(cluster, "first", SYSTEM)
    prompts = {f"r{index}": SYSTEM + prompt_of(f"r{index}", index % 9 + 1) for index in range(12)}

    def load() -> None:
        for index, (name, prompt) in enumerate(prompts.items()):
            cluster.assign(name, prompt, greedy(4), index % 3 + 1)
        cluster.run()

    assert computed.during(load) == sum(len(prompt) - 40 for prompt in prompts.values())
    for index, (name, prompt) in enumerate(prompts.items()):
        expect_exact(cluster, name, prompt, greedy(4), index % 3 + 1)
    assert cluster.cached == dict.fromkeys(prompts, 40)


@pytest.mark.parametrize("length,cached", [(39, 36), (40, 36), (41, 40)])
def test_the_last_token_is_always_computed(served: tuple[Cluster, Computed], length: int, cached: int) -> None:
    cluster, computed = served
    prompt = prompt_of("x", 60)
    serve(cluster, "a", prompt)
    serve(cluster, "b", prompt[:length])
    assert cluster.cached == {"b": cached}
    assert computed.num_tokens == 60 + length - cached


def test_salts_share_nothing(served: tuple[Cluster, Computed]) -> None:
    cluster, _ = served
    serve(cluster, "a", SYSTEM)
    serve(cluster, "b", SYSTEM, cache_salt="one")
    serve(cluster, "c", SYSTEM, cache_salt="two")
    assert cluster.cached == {}
    serve(cluster, "d", SYSTEM, cache_salt="two")
    assert cluster.cached == {"d": 36}


def served_together(cluster: Cluster, prompts: dict[str, list[int]]) -> None:
    for name, prompt in prompts.items():
        cluster.assign(name, prompt, greedy(5))
    cluster.run()
    for name, prompt in prompts.items():
        expect_exact(cluster, name, prompt, greedy(5))


def test_a_prompt_waits_for_another_one_that_begins_alike_and_is_being_computed(
    served: tuple[Cluster, Computed],
) -> None:
    cluster, computed = served
    served_together(cluster, {name: [*SYSTEM, ord(name)] for name in "abc"})
    assert computed.num_tokens == 41 + 1 + 1
    assert cluster.cached == {"b": 40, "c": 40}


def test_prompts_that_are_computed_at_the_same_time_keep_one_copy(served: tuple[Cluster, Computed]) -> None:
    """They have too little in common to wait for each other."""
    cluster, computed = served
    served_together(cluster, {name: [*SYSTEM[:8], *prompt_of(name, 32)] for name in "ab"})
    assert computed.num_tokens == 2 * 40 and cluster.cached == {}
    worker = cluster.computing[0]
    assert worker.planner.kv_manager.counts().cached in (10, 11), (
        "10 pages of the first; a unified worker keeps outputs"
    )


@pytest.mark.parametrize("mirrored", [False, True])
def test_what_only_prefill_has_is_sent_from_its_cache(mirrored: bool) -> None:
    computed = Computed()
    cluster = make_cluster("1P1D", caches=True, wrap=computed.wrap, mirrored=mirrored)
    serve(cluster, "a", SYSTEM, max_tokens=1)  # prefill draws its only output, and sends nothing
    assert computed.during(lambda: serve(cluster, "b", [*SYSTEM, 9])) == 1


def test_what_one_peer_got_on_the_device_comes_to_another_from_the_host() -> None:
    """The twin of prefill's memory holds zeros where nothing was copied: they would change the text."""
    computed, network = Computed(), InprocNetwork(copies=HostCopies(), num_on_device=1)
    cluster = make_cluster("1P2D", caches=True, wrap=computed.wrap, mirrored=True, network=network)
    serve(cluster, "by frames", [7])
    serve(cluster, "on the device", SYSTEM)
    first, second = cluster.decodes.values()
    assert [worker.planner.kv_manager.counts().cached for worker in (first, second)] == [11, 1], "who got what"
    assert computed.during(lambda: serve(cluster, "by frames too", [*SYSTEM, 9])) == 1
    assert second.planner.kv_manager.counts().cached > 10


def test_work_begun_before_a_flush_is_not_cached(served: tuple[Cluster, Computed]) -> None:
    cluster, _ = served
    worker = cluster.computing[0]
    serve(cluster, "before", SYSTEM)
    cluster.assign("a", SYSTEM, greedy(5))
    cluster.run(until=lambda: bool(worker.planner.in_flight))
    worker.planner.kv_manager.flush()
    cluster.run()
    expect_exact(cluster, "a", SYSTEM, greedy(5))
    assert worker.planner.kv_manager.counts().cached == 0
    expect_rest(cluster)


def test_pages_of_the_cache_that_are_being_sent_are_not_evicted_and_nobody_waits_for_ever() -> None:
    """A prompt that needs pages gets those that nobody reads, although they were used later. One that needs more waits
    until the others were sent. Every text is right."""
    is_slow = True
    network = InprocNetwork(lambda packet: [packet.delayed(600) if is_slow else packet])
    cluster = make_cluster("1P1D", caches=True, num_pages=24, decode_page_size=16, network=network)
    (prefill,) = cluster.prefills.values()
    prompts = {name: prompt_of(name, length) for name, length in (("small", 20), ("evicts", 35), ("waits", 60))}
    serve(cluster, "first", SYSTEM, max_tokens=1)  # prefill draws its only output, and sends nothing
    cluster.assign("sent", [*SYSTEM, 9], greedy(6))
    cluster.run(until=lambda: prefill.stats().counters.get("frames", 0) > 0 and not prefill.loop.busy)
    is_slow = False

    def serve_beside(name: str) -> None:
        cluster.assign(name, prompts[name], greedy(6))
        cluster.run(until=lambda: bool(cluster.answers[name, 0].finish))

    serve_beside("small")
    serve_beside("evicts")
    assert not cluster.answers["sent", 0].finish, "its KV is still on the way"
    kv_manager = prefill.planner.kv_manager

    def num_cached(ids: Sequence[int]) -> int:
        return kv_manager.num_cached(CacheKey(packed((*ids, 9)), ""), has_draft=True)

    assert num_cached(prompts["small"]) < 20, "these pages were taken"
    assert num_cached(SYSTEM) == 40, "and these were not"
    serve_beside("waits")
    cluster.run()
    for name, prompt in {"sent": [*SYSTEM, 9], **prompts}.items():
        expect_exact(cluster, name, prompt, greedy(6))
    expect_rest(cluster)


def test_the_books_of_a_cache_add_up_and_are_never_negative(served: tuple[Cluster, Computed]) -> None:
    """Whatever is shared, cancelled, evicted and flushed, at every step."""
    cluster, _ = served
    rng, running = random.Random(1), list[str]()
    for index in range(60):
        name, begin = f"r{index}", SYSTEM[: rng.choice((0, 8, 21, 40))]
        cluster.assign(name, [*begin, *prompt_of(f"{index % 7}", rng.randint(1, 30))], greedy(rng.randint(1, 5)))
        running.append(name)
        for _ in range(rng.randint(0, 6)):
            cluster.turn()
            cluster.check()
            for worker in cluster.workers:
                counts = worker.planner.kv_manager.counts()
                states = (counts.free, counts.cached, counts.owned, counts.reserved, counts.quarantined)
                assert min(states) >= 0 and sum(states) == counts.total
        if rng.random() < 0.3:
            cluster.cancel(running.pop(rng.randrange(len(running))))
        if rng.random() < 0.1:
            for worker in cluster.workers:
                worker.planner.kv_manager.flush()
    cluster.run()
    expect_rest(cluster)
