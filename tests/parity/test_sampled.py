"""With a seed, sampled tokens depend on the request alone: not on company, topology, pages or the schedule."""

import random
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from protocol.messages_gateway import SamplingParams
from testkit.reference import VOCAB_SIZE
from tests.cluster import Cluster
from tests.parity.grid import TOPOLOGIES
from tests.parity.serving import runner_of
from tests.selecting import first, full

pytestmark = pytest.mark.slow

NUM_TOKENS = 40
PROMPT = [3, 14, 159, 26, 53, 58, 97, 93, 238, 46, 264, 33, 83, 279, 50, 288, 41]
PLAIN = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=1234)
SAMPLED = {
    "temperature": PLAIN,
    "hot": replace(PLAIN, temperature=1.7),
    "top_k": replace(PLAIN, top_k=20),
    "top_p": replace(PLAIN, top_p=0.8),
    "min_p": replace(PLAIN, min_p=0.1),
    "all": replace(PLAIN, temperature=1.3, top_k=40, top_p=0.9, min_p=0.02, seed=-(1 << 63)),
}


def sample(
    params: SamplingParams,
    topology: str = "1U",
    *,
    n: int = 1,
    company: int = 0,
    overlap: bool = True,
    page_size: int = 16,
    chunk_size: int = 0,
) -> list[list[int]]:
    """The tokens of each choice, among `company` other requests that start before and after it."""
    cluster = Cluster(
        runner_of("qwen3"),
        topology,
        overlap=overlap,
        page_size=page_size,
        chunk_size=chunk_size,
        num_pages=8000 // page_size,
    )
    rng = random.Random(company)
    for index in range(company):
        if index == company // 2:
            cluster.run(until=lambda: bool(cluster.answers["other-0", 0].tokens))
            cluster.assign("it", PROMPT, params, n)
        other = replace(
            params,
            seed=rng.getrandbits(63),
            max_tokens=rng.randint(1, NUM_TOKENS),
            temperature=rng.choice((0.0, 0.5, 1.0)),
            top_k=rng.choice((0, 5)),
            top_p=rng.choice((1.0, 0.5)),
            min_p=rng.choice((0.0, 0.2)),
        )
        cluster.assign(f"other-{index}", [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 60))], other)
    if not company:
        cluster.assign("it", PROMPT, params, n)
    cluster.run()
    cluster.check()
    cluster.close()
    assert not cluster.failures
    return [cluster.answers["it", choice].ids for choice in range(n)]


@cache
def alone(name: str) -> list[int]:
    """The yardstick: unified, serial, whole prompts, nobody else there."""
    return sample(SAMPLED[name], overlap=False)[0]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_company_and_topology_change_nothing(topology: str) -> None:
    assert sample(SAMPLED["all"], topology, company=16, chunk_size=32)[0] == alone("all")


WAYS = ((True, 1, 16), (True, 16, 0), (False, 16, 16))  # overlap, page size, company
FEW = [(topology, *way) for topology, way in zip(TOPOLOGIES, WAYS, strict=True)]
MORE = [each for topology, way in product(TOPOLOGIES, WAYS) if (each := (topology, *way)) not in FEW]


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("topology, overlap, page_size, company", [*first(1, FEW), *map(full, MORE)])
def test_nothing_but_the_request_matters(name: str, topology: str, overlap: bool, page_size: int, company: int) -> None:
    got = sample(
        SAMPLED[name], topology, overlap=overlap, page_size=page_size, chunk_size=company // 2, company=company
    )
    assert got[0] == alone(name)


def test_seeds_differ() -> None:
    assert len({tuple(sample(replace(PLAIN, seed=seed))[0]) for seed in range(4)}) == 4


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_choices_differ_and_the_first_is_as_if_alone(topology: str) -> None:
    choices = sample(PLAIN, topology, n=3)
    assert choices[0] == alone("temperature")
    assert len(set(map(tuple, choices))) == 3
    assert choices == sample(PLAIN, "1U", n=3, company=16)


def test_tokens_are_really_sampled() -> None:
    greedy = sample(replace(PLAIN, temperature=0.0))[0]
    assert all(alone(name) != greedy for name in SAMPLED)
    assert len({tuple(alone(name)) for name in SAMPLED}) == len(SAMPLED)


def test_one_candidate_is_greedy() -> None:
    greedy = sample(replace(PLAIN, temperature=0.0))[0]
    for narrow in (replace(PLAIN, top_k=1), replace(PLAIN, top_p=1e-6), replace(PLAIN, min_p=1.0)):
        assert sample(narrow, "1P1D")[0] == greedy
