"""Whole engines over the in-process network, with a model whose next token is a hash of the KV actually present."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from protocol.messages_gateway import SamplingParams
from tests.cluster import Cluster
from tests.decode.driving import greedy
from tests.doubles.backend_inproc import InprocNetwork
from tests.doubles.hash_model import FakeRunner
from tests.doubles.held_copies import HeldCopies
from transfer.in_place.device_pools import word_bytes

RUNNER = FakeRunner(context_length=512)


class Load:
    """Requests of random sizes, all at once. `num_tokens` 0: as many outputs as chance says."""

    def __init__(self, cluster: Cluster, count: int, seed: str, *, num_tokens: int = 0) -> None:
        rng = random.Random(seed)
        self.cluster = cluster
        self.requests: dict[str, tuple[list[int], SamplingParams, int]] = {}
        for index in range(count):
            prompt = [rng.randrange(RUNNER.vocab_size) for _ in range(rng.randint(1, 60))]
            self.requests[f"r{index}"] = prompt, greedy(num_tokens or rng.randint(1, 20)), 1 + index % 3
            cluster.assign(f"r{index}", *self.requests[f"r{index}"])

    def check_answers(self, left: Sequence[str] = ()) -> None:
        """Serves them. Of those that have left, what came is right."""
        self.cluster.run()
        self.cluster.check()
        assert not self.cluster.failures
        for name, (prompt, params, n) in self.requests.items():
            expected = RUNNER.expected_tokens(prompt, params.max_tokens)
            for choice in range(n):
                answer = self.cluster.answers[name, choice]
                if name in left and not answer.finish:
                    assert answer.ids == expected[: len(answer.ids)]
                else:
                    assert (answer.ids, answer.finish) == (expected, "length")
        self.cluster.close()


SIZES = [(4, 4), (16, 4), (3, 5), (1, 8)]  # of pages at prefill and at decode


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("mirrored", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sizes", [(4, 16), *(pytest.param(pair, marks=pytest.mark.slow) for pair in SIZES)])
def test_pages_of_different_sizes_at_prefill_and_decode(sizes: tuple[int, int], mirrored: bool, in_place: bool) -> None:
    network = InprocNetwork(in_place=in_place)
    options: dict[str, Any] = {
        "page_size": sizes[0],
        "decode_page_size": sizes[1],
        "chunk_size": 9,
        "mirrored": mirrored,
    }
    Load(Cluster(RUNNER, "2P2D", network=network, **options), 12, str(sizes), num_tokens=12).check_answers()


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("sizes", [(4, 4), (3, 5)])
def test_kv_that_a_device_writes_late_and_no_twin_overwrites(sizes: tuple[int, int], mirrored: bool) -> None:
    """The twins in host memory hold zeros: whoever staged them in would change the text."""
    copies = HeldCopies(looks=3)
    options: dict[str, Any] = {"page_size": sizes[0], "decode_page_size": sizes[1], "chunk_size": 9, "num_pages": 700}
    cluster = Cluster(RUNNER, "2P2D", mirrored=mirrored, network=InprocNetwork(copies=copies), **options)
    load = Load(cluster, 12, str(sizes), num_tokens=12)
    for _ in range(20):
        cluster.turn()
    left = ("r1", "r4", "r7")  # some in the middle of it
    for name in left:
        cluster.cancel(name)
    load.check_answers(left)
    assert not copies.queue

    layout = RUNNER.kv_layout(page_size=1)
    words_per_token = layout.num_layers * layout.layer(0).page_bytes // word_bytes(layout.layer(0))
    num_tokens = sum(len(prompt) for name, (prompt, *_) in load.requests.items() if name not in left)
    assert min(copies.words_written, copies.words_read) >= words_per_token * num_tokens
