"""How answers end: at the first token, by EOS, stop tokens, min_tokens and max_tokens, in both topologies."""

import random
from typing import Any

import pytest

from protocol.messages_gateway import FinishReason, SamplingParams
from tests.decode.driving import VOCAB, Phase, drive_to, greedy, make_cluster, prompt_of, reference
from tests.doubles.hash_model import FakeRunner

PROMPT = prompt_of("ends", 18)
KNOWN = FakeRunner(vocab_size=VOCAB).expected_tokens(PROMPT, 12)
ABSENT = next(token for token in range(VOCAB) if token not in KNOWN)


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


@pytest.mark.parametrize("choice", [0, 2])
@pytest.mark.parametrize("state", [Phase.RESERVING, Phase.REQUESTED, Phase.RECEIVING], ids=str)
def test_a_choice_is_cancelled_and_the_others_end_at_the_first_token(state: Phase, choice: int) -> None:
    cluster = make_cluster()
    cluster.ask("r", PROMPT, greedy(9, eos_token_ids=(KNOWN[0],)), 3)
    drive_to(cluster, "r", state)
    cluster.cancel("r", choice)
    cluster.run()
    cluster.expect_end(*[("r", choice)] * (not cluster.answers["r", choice].finish))


CASES: dict[str, dict[str, Any]] = {
    "eos": {"eos_token_ids": (ABSENT, KNOWN[3])},
    "eos at the last token": {"eos_token_ids": (KNOWN[11],)},
    "ignore_eos": {"eos_token_ids": (KNOWN[3],), "ignore_eos": True},
    "stop token": {"stop_token_ids": (KNOWN[5],), "eos_token_ids": (KNOWN[2],), "ignore_eos": True},
    "min_tokens below": {"eos_token_ids": (KNOWN[3],), "min_tokens": 3},
    "min_tokens above": {"eos_token_ids": (KNOWN[3],), "min_tokens": 4},
    "min_tokens at the first": {"eos_token_ids": (KNOWN[0],), "min_tokens": 1},
    "min_tokens is max_tokens": {"eos_token_ids": tuple(KNOWN), "min_tokens": 12},
    "min_tokens with nothing to ban": {"min_tokens": 5},
}


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
@pytest.mark.parametrize("case", CASES)
def test_endings(case: str, topology: str) -> None:
    cluster = make_cluster(topology)
    cluster.ask("r", PROMPT, greedy(12, **CASES[case]), 2)
    cluster.run()
    cluster.expect_end()


def test_what_the_cases_say() -> None:
    ends = {case: reference(PROMPT, greedy(12, **fields)) for case, fields in CASES.items()}
    assert ends["eos"] == (KNOWN[:4], FinishReason.STOP)
    assert ends["eos at the last token"] == (KNOWN, FinishReason.STOP)
    assert ends["ignore_eos"] == (KNOWN, FinishReason.LENGTH)
    assert ends["stop token"] == (KNOWN[:6], FinishReason.STOP)
    assert ends["min_tokens below"] == (KNOWN[:4], FinishReason.STOP)
    assert ends["min_tokens above"][0][:4] != KNOWN[:4] and ends["min_tokens above"][0][:3] == KNOWN[:3]
    assert ends["min_tokens at the first"][0][0] != KNOWN[0]
    assert len(ends["min_tokens is max_tokens"][0]) == 12


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
