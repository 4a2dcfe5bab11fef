"""Whole engines over the in-process network, with a model whose next token is a hash of the KV actually present."""

import random

import pytest

from protocol.messages_gateway import SamplingParams
from tests.cluster import Cluster
from tests.doubles.backend_inproc import InprocNetwork
from tests.doubles.hash_model import FakeRunner
from tests.doubles.held_copies import HeldCopies
from transfer.in_place.device_pools import word_bytes


def greedy(max_tokens: int, **more: object) -> SamplingParams:
    """Greedy parameters."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **more)  # type: ignore[arg-type]


SIZES = [(4, 4), (16, 4), (3, 5), (1, 8)]  # of pages at prefill and at decode


@pytest.mark.parametrize("topology", ["1P1D", "2P2D", "1U"])
@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk_size", [0, 7])
def test_every_token_is_right(topology: str, overlap: bool, page_size: int, chunk_size: int) -> None:
    runner = FakeRunner(context_length=512)
    cluster = Cluster(
        runner, topology, overlap=overlap, page_size=page_size, chunk_size=chunk_size, num_pages=4000 // page_size
    )
    rng = random.Random(f"{topology}{overlap}{page_size}{chunk_size}")
    requests = {}
    for index in range(12):
        prompt = [rng.randrange(runner.vocab_size) for _ in range(rng.randint(1, 60))]
        params = greedy(rng.randint(1, 20))
        requests[f"r{index}"] = (prompt, params)
        cluster.assign(f"r{index}", prompt, params, n=1 + index % 3)
    cluster.run()
    cluster.check()
    for name, (prompt, params) in requests.items():
        expected = runner.expected_tokens(prompt, params.max_tokens)
        for choice in range(1 + int(name[1:]) % 3):
            assert cluster.answers[name, choice].ids == expected
            assert cluster.answers[name, choice].finish == "length"
    assert not cluster.failures
    cluster.close()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("mirrored", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sizes", [(4, 16), *(pytest.param(each, marks=pytest.mark.slow) for each in SIZES)])
def test_pages_of_different_sizes_at_prefill_and_decode(sizes: tuple[int, int], mirrored: bool, in_place: bool) -> None:
    runner = FakeRunner(context_length=512)
    page_size, decode_page_size = sizes
    cluster = Cluster(
        runner,
        "2P2D",
        page_size=page_size,
        decode_page_size=decode_page_size,
        chunk_size=9,
        mirrored=mirrored,
        network=InprocNetwork(in_place=in_place),
    )
    rng = random.Random(str(sizes))
    prompts = [[rng.randrange(runner.vocab_size) for _ in range(rng.randint(1, 60))] for _ in range(12)]
    for index, prompt in enumerate(prompts):
        cluster.assign(f"r{index}", prompt, greedy(12), n=1 + index % 3)
    cluster.run()
    cluster.check()
    for index, prompt in enumerate(prompts):
        for choice in range(1 + index % 3):
            assert cluster.answers[f"r{index}", choice].ids == runner.expected_tokens(prompt, 12)
    assert not cluster.failures
    cluster.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_kv_that_is_staged_through_host_memory(overlap: bool) -> None:
    runner = FakeRunner(context_length=512)
    cluster = Cluster(runner, "1P2D", overlap=overlap, page_size=4, chunk_size=9, num_pages=600, mirrored=True)
    rng = random.Random(1)
    prompts = [[rng.randrange(runner.vocab_size) for _ in range(rng.randint(1, 60))] for _ in range(8)]
    for index, prompt in enumerate(prompts):
        cluster.assign(f"r{index}", prompt, greedy(12), n=2)
    cluster.run()
    for index, prompt in enumerate(prompts):
        for choice in range(2):
            assert cluster.answers[f"r{index}", choice].ids == runner.expected_tokens(prompt, 12)
    cluster.close()


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("sizes", [(4, 4), (3, 5)])
def test_kv_that_a_device_writes_late_and_no_twin_overwrites(sizes: tuple[int, int], mirrored: bool) -> None:
    """The twins in host memory hold zeros: whoever staged them in would change the text."""
    runner, copies = FakeRunner(context_length=512), HeldCopies(looks=3)
    cluster = Cluster(
        runner,
        "2P2D",
        page_size=sizes[0],
        decode_page_size=sizes[1],
        chunk_size=9,
        num_pages=700,
        mirrored=mirrored,
        network=InprocNetwork(copies=copies),
    )
    rng = random.Random(str(sizes))
    prompts = [[rng.randrange(runner.vocab_size) for _ in range(rng.randint(1, 60))] for _ in range(12)]
    for index, prompt in enumerate(prompts):
        cluster.assign(f"r{index}", prompt, greedy(12), n=1 + index % 3)
    for _ in range(20):
        cluster.step()
    left = (1, 4, 7)  # some in the middle of it
    for index in left:
        cluster.cancel(f"r{index}")
    cluster.run()
    cluster.check()
    assert not copies.queue and not cluster.failures

    layout = runner.kv_layout(page_size=1)
    words_per_token = layout.num_layers * layout.layer(0).page_bytes // word_bytes(layout.layer(0))
    num_tokens = sum(len(prompt) for index, prompt in enumerate(prompts) if index not in left)
    assert min(copies.words_written, copies.words_read) >= words_per_token * num_tokens
    for index, prompt in enumerate(prompts):
        for choice in range(1 + index % 3):
            answer, expected = cluster.answers[f"r{index}", choice], runner.expected_tokens(prompt, 12)
            assert answer.ids == expected or (index in left and answer.ids == expected[: len(answer.ids)])
    cluster.close()
