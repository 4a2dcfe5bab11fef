"""Workers that do not match, and workers that are lost in the middle of something."""

from dataclasses import replace

import pytest

from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import Assign, PeerLost
from protocol.messages_handoff import HelloAccepted, JobFinishedEarly
from tests.cluster import Cluster
from tests.decode.driving import (
    Phase,
    Recorder,
    decode_phase,
    drive_to,
    expect_exact,
    expect_prefix,
    expect_rest,
    greedy,
    job_phase,
    make_cluster,
    prompt_of,
    slow_network,
)
from tests.doubles.hash_model import FakeRunner

PARAMS = greedy(15)
PROMPT = prompt_of("r", 61)


def test_an_answer_with_another_kv_layout_is_refused_with_both_values() -> None:
    cluster = make_cluster()
    (decode,), (prefill,) = cluster.decodes.values(), cluster.prefills
    cluster.assign("a", PROMPT, PARAMS)
    cluster.assign("b", PROMPT, PARAMS)
    ours = decode.planner.layout
    layout = replace(ours, groups=(replace(ours.groups[0], head_dim=64),))
    decode.on_peer(prefill, HelloAccepted(cluster.addresses[prefill], 1000, layout))
    cluster.run()
    cluster.assign("c", PROMPT, PARAMS)  # the refusal is remembered
    cluster.run(lambda: len(cluster.failures) == 3)
    for failure in cluster.failures.values():
        assert failure.code == "layout_mismatch"
        assert failure.message == "head_dim is 64 on prefill-0, 4 on decode-0"
    assert cluster.prefills[prefill].planner.num_launches == 0
    expect_rest(cluster)


def test_who_has_got_the_port_of_another_is_not_taken_for_it() -> None:
    cluster = make_cluster()
    (decode,), (prefill,) = cluster.decodes.values(), cluster.prefills
    cluster.assign("r", PROMPT, PARAMS)
    decode.outbox.prefill.clear()
    address = replace(cluster.addresses[prefill], instance=prefill + 1)
    decode.on_peer(prefill, HelloAccepted(address, 1000, decode.planner.layout))
    for _ in range(10):
        decode.step()
    assert decode.outbox.prefill == [] and decode_phase(cluster, "r") is Phase.RESERVING
    cluster.lose_prefill(prefill)
    cluster.run(lambda: "r" in cluster.failures)
    assert cluster.failures["r"].code == "worker_lost"
    expect_rest(cluster)


def test_another_model_is_refused_with_both_fingerprints() -> None:
    cluster = make_cluster()
    (decode,) = cluster.decodes.values()
    ours, decode._peers.fingerprint = decode._peers.fingerprint, Fingerprint("another")
    cluster.assign("a", PROMPT, PARAMS)
    cluster.run()
    failure = cluster.failures["a"]
    assert failure.code == "layout_mismatch"
    assert failure.message == f"model fingerprint is {ours.config} on prefill-0, another on decode-0"
    expect_rest(cluster)


def test_one_that_does_not_match_does_not_hold_up_the_others() -> None:
    cluster = make_cluster("2P1D")
    bad, good = cluster.prefills.values()
    bad._peers.fingerprint = Fingerprint("another")
    for name in ("a", "b", "c", "d"):
        cluster.assign(name, PROMPT, PARAMS)
    cluster.run()
    assert 0 < len(cluster.failures) < 4
    for name in {"a", "b", "c", "d"} - set(cluster.failures):
        expect_exact(cluster, name, PROMPT, PARAMS)
    assert (bad.planner.num_launches, good.planner.num_launches > 0) == (0, True)
    expect_rest(cluster)


LOSSES = [
    (Phase.RESERVING, True),
    (Phase.REQUESTED, True),
    (Phase.RECEIVING, True),
    (Phase.WAITING, True),
    (Phase.COMPUTING, True),
    (Phase.SENDING, True),
    (Phase.RUNNING, False),
]


def two_pairs() -> Cluster:
    """`r` on the first prefill worker and `other` on the second, one decode worker."""
    cluster = make_cluster("2P1D", network=slow_network())
    cluster.assign("r", PROMPT, PARAMS, 2)
    cluster.assign("other", prompt_of("other", 40), PARAMS)
    (decode,) = cluster.decodes.values()
    assert decode._requests.by_key["r", 0].prefill != decode._requests.by_key["other", 0].prefill
    return cluster


@pytest.mark.parametrize("state,fails", LOSSES, ids=str)
def test_prefill_is_lost_in_every_state(state: Phase, fails: bool) -> None:
    cluster = two_pairs()
    (decode,) = cluster.decodes.values()
    instance = decode._requests.by_key["r", 0].prefill.instance
    drive_to(cluster, "r", state)
    cluster.lose_prefill(instance)
    assert (decode_phase(cluster, "r") is None) == fails
    cluster.run()
    if fails:
        assert set(cluster.failures) == {"r"}
        assert cluster.failures["r"].code == "worker_lost"
        assert f"prefill-{instance - 100}" in cluster.failures["r"].message
        for choice in range(2):
            expect_prefix(cluster, "r", PROMPT, PARAMS, choice)
    else:
        expect_exact(cluster, "r", PROMPT, PARAMS, 2)
    expect_exact(cluster, "other", prompt_of("other", 40), PARAMS)
    expect_rest(cluster)


@pytest.mark.parametrize("state", [Phase.WAITING, Phase.COMPUTING, Phase.SENDING, Phase.RUNNING], ids=str)
def test_prefill_drops_every_job_of_a_lost_decode_worker(state: Phase) -> None:
    cluster = make_cluster("1P2D", network=slow_network())
    cluster.assign("r", PROMPT, PARAMS)
    cluster.assign("other", prompt_of("other", 40), PARAMS)
    drive_to(cluster, "r", state)
    instance = next(i for i, worker in cluster.decodes.items() if ("r", 0) in worker._requests.by_key)
    cluster.lose_decode(instance)
    assert job_phase(cluster, "r") is None
    cluster.run()
    expect_prefix(cluster, "r", PROMPT, PARAMS)
    expect_exact(cluster, "other", prompt_of("other", 40), PARAMS)
    assert not cluster.failures
    expect_rest(cluster)


def test_a_strange_loss_is_nobodys_business() -> None:
    cluster = make_cluster()
    cluster.assign("r", PROMPT, PARAMS)
    drive_to(cluster, "r", Phase.RECEIVING)
    for worker in cluster.workers:
        worker.on_gateway(PeerLost("stranger", 999))
    cluster.run()
    expect_exact(cluster, "r", PROMPT, PARAMS)
    expect_rest(cluster)


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
@pytest.mark.parametrize("num_steps", [0, 3, 8, 15])
def test_a_new_gateway_finds_empty_workers(num_steps: int, topology: str) -> None:
    cluster = make_cluster(topology)
    record = Recorder(cluster)
    for index in range(4):
        cluster.assign(f"r{index}", prompt_of(f"r{index}", 20 + index), PARAMS, 2)
    for _ in range(num_steps):
        cluster.step()
    for worker in cluster.workers:
        worker.reset()
    record.start()
    cluster.run()
    assert [piece for piece in record.pieces if piece[0] == "tokens"] == []
    cluster.failures.clear()
    cluster.assign("again", PROMPT, PARAMS)
    cluster.run()
    expect_exact(cluster, "again", PROMPT, PARAMS)
    expect_rest(cluster)


def test_another_prefill_worker_cannot_end_a_request() -> None:
    cluster = make_cluster("2P1D")
    (decode,) = cluster.decodes.values()
    cluster.assign("r", PROMPT, PARAMS)
    cluster.assign("other", PROMPT, PARAMS)
    request = decode._requests.by_key["r", 0]
    stranger = next(instance for instance in cluster.prefills if instance != request.prefill.instance)
    drive_to(cluster, "r", Phase.RECEIVING)
    decode.on_peer(stranger, JobFinishedEarly(request.reservation, (1,)))
    decode.on_peer(999, JobFinishedEarly(request.reservation, (1,)))
    cluster.run()
    expect_exact(cluster, "r", PROMPT, PARAMS)
    expect_exact(cluster, "other", PROMPT, PARAMS)
    expect_rest(cluster)


def test_an_early_end_that_is_none_fails_the_request() -> None:
    cluster = make_cluster()
    (decode,) = cluster.decodes.values()
    cluster.assign("r", PROMPT, PARAMS)
    drive_to(cluster, "r", Phase.RECEIVING)
    request = decode._requests.by_key["r", 0]
    token = FakeRunner(vocab_size=211).expected_tokens(PROMPT, 1)[0]
    decode.on_peer(request.prefill.instance, JobFinishedEarly(request.reservation, (token,)))
    (prefill,) = cluster.prefills.values()
    assert decode_phase(cluster, "r") is None
    cluster.run(lambda: "r" in cluster.failures)
    assert cluster.failures["r"].code == "internal_error"
    prefill.on_gateway(PeerLost("decode-0", next(iter(cluster.decodes))))  # what a gateway would do about such a pair
    cluster.run()
    assert job_phase(cluster, "r") is None
    cluster.close()


def test_the_same_request_again_is_a_new_attempt() -> None:
    cluster = make_cluster()
    (decode,) = cluster.decodes.values()
    cluster.assign("r", PROMPT, PARAMS)
    prefill = decode._requests.by_key["r", 0].prefill
    drive_to(cluster, "r", Phase.RECEIVING)
    cluster.cancel("r")
    decode.on_gateway(Assign("r", 1, tuple(PROMPT), PARAMS, 1, prefill))
    cluster.run()
    expect_exact(cluster, "r", PROMPT, PARAMS)
    expect_rest(cluster)


@pytest.mark.parametrize("steps", range(0, 40, 4))
def test_a_connection_to_prefill_that_has_come_back_costs_an_attempt_and_leaves_nothing(steps: int) -> None:
    """Whatever was on the way between the two is lost with it."""
    cluster = make_cluster()
    (decode,), (prefill,) = cluster.decodes.values(), cluster.prefills
    cluster.assign("r", PROMPT, PARAMS)
    for _ in range(steps):
        cluster.step()
    was_on_its_way = bool(decode._requests.by_reservation)
    decode.outbox.prefill.clear()
    cluster.prefills[prefill].outbox.decode.clear()
    decode.on_session_lost(prefill)
    cluster.run()
    if was_on_its_way:
        assert cluster.failures["r"].code == "kv_not_delivered"
        cluster.assign("again", PROMPT, PARAMS)
        cluster.run()
        expect_exact(cluster, "again", PROMPT, PARAMS)
    else:
        expect_exact(cluster, "r", PROMPT, PARAMS)
    expect_rest(cluster, credit_bytes_lost=True)
