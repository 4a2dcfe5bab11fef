"""Greedy tokens equal transformers' generate, token for token, through whole deployments in one process.

All prompts of a combination run at the same time, so chunks, joins and departures mix.
"""

import pytest

from protocol.messages_gateway import SamplingParams
from testkit.reference import NUM_TOKENS, reference
from tests.cluster import Cluster
from tests.parity.grid import GRID, PAIRWISE, Combination
from tests.parity.serving import runner_of, serve

pytestmark = pytest.mark.slow

NUM_KV_TOKENS = 1600  # the requests need some 1,100 at most


def check_parity(combination: Combination) -> None:
    expected = reference(combination.arch)
    cluster = Cluster(
        runner_of(combination.arch),
        combination.topology,
        overlap=combination.overlap,
        page_size=combination.page_size,
        chunk_size=combination.chunk_size,
        num_pages=NUM_KV_TOKENS // combination.page_size,
    )
    serve(cluster, expected.prompts, lambda index: SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0))
    for index, continuation in enumerate(expected.continuations):
        answer = cluster.answers[f"r{index}", 0]
        assert tuple(answer.ids) == continuation, f"prompt {index}"
        assert answer.finish == "length"


@pytest.mark.parametrize("combination", PAIRWISE, ids=str)
def test_a_few_combinations(combination: Combination) -> None:
    check_parity(combination)


@pytest.mark.full
@pytest.mark.parametrize("combination", GRID, ids=str)
def test_every_combination(combination: Combination) -> None:
    check_parity(combination)
