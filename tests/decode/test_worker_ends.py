"""How answers end: at the first token, by EOS, stop tokens, min_tokens and max_tokens, in both topologies."""

import random

import pytest

from protocol.messages_gateway import FinishReason, SamplingParams
from tests.decode.driving import VOCAB, greedy, make_cluster, prompt_of, reference
from tests.doubles.hash_model import FakeRunner

PROMPT = prompt_of("ends", 18)
KNOWN = FakeRunner(vocab_size=VOCAB).expected_tokens(PROMPT, 12)


def test_the_known_tokens_differ() -> None:
    assert len(set(KNOWN)) == len(KNOWN)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_single_token_needs_no_kv_and_reserves_nothing(n: int, overlap: bool) -> None:
    cluster = make_cluster(overlap=overlap)
    kv_manager = cluster.decode.planner.kv_manager
    cluster.ask("r", PROMPT, greedy(1), n)

    def is_done() -> bool:
        counts = kv_manager.pages.counts()
        assert (counts.free, kv_manager.rows.num_free) == (counts.total, 32)
        return bool(cluster.answers["r", 0].finish) and cluster.at_rest()

    cluster.run(is_done)
    assert cluster.decode.planner.num_launches == 0
    counters = {**cluster.prefill._sender.counters, **cluster.decode._receiver.counters}
    assert [counters.get(name, 0) for name in ("frames", "bytes", "rejected_unknown_reservation")] == [0, 0, 0]
    cluster.expect_end()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("chunk_size", [0, 7])
def test_a_first_token_that_ends_the_answer_stops_the_transfer(chunk_size: int, overlap: bool) -> None:
    cluster = make_cluster(overlap=overlap, chunk_size=chunk_size)
    params = greedy(9, eos_token_ids=(KNOWN[0],))
    cluster.ask("r", PROMPT, params)
    cluster.ask("other", PROMPT[:9], greedy(9))
    cluster.run()
    assert reference(PROMPT, params) == ([KNOWN[0]], FinishReason.STOP)
    sent, landed = cluster.prefill._sender.counters, cluster.decode._receiver.counters
    assert sent["transfers_cancelled"] == sent["transfers_delivered"] == 1
    assert landed["reservations_cancelled"] == landed["reservations_delivered"] == 1
    cluster.expect_end()


@pytest.mark.parametrize("topology,seed", [("1P1D", 1), pytest.param("2P2D", 2, marks=pytest.mark.slow), ("1U", 3)])
@pytest.mark.parametrize("overlap", [True, False])
def test_many_that_end_anywhere(topology: str, seed: int, overlap: bool) -> None:
    """Eleven tokens in all, so that endings are met often and in the same launches."""
    vocab, rng = 11, random.Random(seed)
    runner = FakeRunner(vocab_size=vocab, context_length=256)
    cluster = make_cluster(topology, runner, overlap=overlap, max_requests=6)
    for index in range(24):
        prompt = prompt_of(f"{seed}-{index}", rng.randint(1, 30), vocab)
        most = rng.randint(1, 12)
        params = SamplingParams(
            most,
            min_tokens=rng.choice([0, 0, 1, 3, most]),
            temperature=0.0,
            eos_token_ids=tuple(rng.sample(range(vocab), rng.randint(0, 2))),
            stop_token_ids=tuple(rng.sample(range(vocab), rng.randint(0, 1))),
            ignore_eos=rng.random() < 0.2,
        )
        cluster.ask(f"r{index}", prompt, params, rng.choice([1, 1, 2, 3]))
    cluster.run()
    cluster.expect_end()
