"""Workers that do not match, and workers that are lost in the middle of something."""

from dataclasses import replace

import pytest

from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import PeerLost
from protocol.messages_handoff import HelloAccepted, JobFinishedEarly
from tests.decode.driving import (
    PAIR,
    VOCAB,
    Driven,
    Phase,
    Recorder,
    decode_phase,
    drive_to,
    driven,
    job_phase,
    make_cluster,
    slow_network,
)
from tests.doubles.hash_model import FakeRunner


@pytest.fixture
def cluster() -> Driven:
    return make_cluster()


def test_an_answer_with_another_kv_layout_is_refused_with_both_values(cluster: Driven) -> None:
    (decode,), (prefill,) = cluster.decodes.values(), cluster.prefills
    for name in "ab":
        cluster.ask(name, 61)
    ours = decode.planner.layout
    layout = replace(ours, groups=(replace(ours.groups[0], head_dim=64),))
    decode.on_peer(prefill, HelloAccepted(cluster.addresses[prefill], 1000, layout))
    cluster.run()
    cluster.ask("c", 61)  # the refusal is remembered
    cluster.run(lambda: len(cluster.failures) == 3)
    for failure in cluster.failures.values():
        assert failure.code == "layout_mismatch"
        assert failure.message == "head_dim is 64 on prefill-0, 4 on decode-0"
    assert cluster.prefill.planner.num_launches == 0
    cluster.expect_end(failed="abc")


def test_who_has_got_the_port_of_another_is_not_taken_for_it(cluster: Driven) -> None:
    (decode,), (prefill,) = cluster.decodes.values(), cluster.prefills
    cluster.ask("r", 61)
    decode.outbox.prefill.clear()
    address = replace(cluster.addresses[prefill], instance=prefill + 1)
    decode.on_peer(prefill, HelloAccepted(address, 1000, decode.planner.layout))
    for _ in range(10):
        decode.turn()
    assert decode.outbox.prefill == [] and decode_phase(cluster, "r") is Phase.RESERVING
    cluster.lose_prefill(prefill)
    cluster.run(lambda: "r" in cluster.failures)
    assert cluster.failures["r"].code == "worker_lost"
    cluster.expect_end(failed="r")


def test_one_that_does_not_match_does_not_hold_up_the_others() -> None:
    cluster = make_cluster("2P1D")
    bad, good = cluster.prefills.values()
    bad._peers.fingerprint = Fingerprint("another")
    for name in "abcd":
        cluster.ask(name, 61)
    cluster.run()
    assert 0 < len(cluster.failures) < 4
    assert (bad.planner.num_launches, good.planner.num_launches > 0) == (0, True)
    cluster.expect_end(failed=list(cluster.failures))


def two_pairs() -> Driven:
    """`r` on the first prefill worker and `other` on the second, one decode worker."""
    cluster = make_cluster("2P1D", network=slow_network())
    cluster.ask("r", 61, n=2)
    cluster.ask("other", 40)
    requests = cluster.decode.served.by_key
    assert requests["r", 0].prefill != requests["other", 0].prefill
    return cluster


@pytest.mark.parametrize("state", PAIR, ids=str)
def test_prefill_is_lost_in_every_state(state: Phase) -> None:
    cluster = two_pairs()
    instance = cluster.decode.served.by_key["r", 0].prefill.instance
    drive_to(cluster, "r", state)
    cluster.lose_prefill(instance)
    failed = [] if state is Phase.RUNNING else ["r"]
    assert (decode_phase(cluster, "r") is None) == bool(failed)
    cluster.run()
    for name in failed:
        assert cluster.failures[name].code == "worker_lost"
        assert f"prefill-{instance - 100}" in cluster.failures[name].message
    cluster.expect_end(failed=failed)


def test_a_strange_loss_is_nobodys_business() -> None:
    cluster = driven(Phase.RECEIVING)
    for worker in cluster.workers:
        worker.on_gateway(PeerLost("stranger", 999))
    cluster.run()
    cluster.expect_end()


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
@pytest.mark.parametrize("num_steps", [0, 3, 8, 15])
def test_a_new_gateway_finds_empty_workers(num_steps: int, topology: str) -> None:
    cluster = make_cluster(topology)
    for index in range(4):
        cluster.ask(f"r{index}", 20 + index, n=2)
    cluster.steps(num_steps)
    for worker in cluster.workers:
        worker.reset()
    record = Recorder(cluster)
    cluster.run()
    assert [piece for piece in record.pieces if piece[0] == "tokens"] == []
    cluster.failures.clear()
    cluster.ask("again", 61)
    cluster.run()
    cluster.expect_end(*(f"r{index}" for index in range(4)))


def test_another_prefill_worker_cannot_end_a_request() -> None:
    cluster = driven(Phase.RECEIVING, "2P1D")
    decode = cluster.decode
    request = decode.served.by_key["r", 0]
    stranger = next(instance for instance in cluster.prefills if instance != request.prefill.instance)
    decode.on_peer(stranger, JobFinishedEarly(request.reservation, (1,)))
    decode.on_peer(999, JobFinishedEarly(request.reservation, (1,)))
    cluster.run()
    cluster.expect_end()


def test_an_early_end_that_is_none_fails_the_request() -> None:
    cluster = make_cluster()
    cluster.ask("r", 61)
    drive_to(cluster, "r", Phase.RECEIVING)
    request = cluster.decode.served.by_key["r", 0]
    token = FakeRunner(vocab_size=VOCAB).expected_tokens(cluster.asked["r"][0], 1)[0]
    cluster.decode.on_peer(request.prefill.instance, JobFinishedEarly(request.reservation, (token,)))
    assert decode_phase(cluster, "r") is None
    cluster.run(lambda: "r" in cluster.failures)
    assert cluster.failures["r"].code == "internal_error"
    # What a gateway would do about such a pair.
    cluster.prefill.on_gateway(PeerLost("decode-0", next(iter(cluster.decodes))))
    cluster.run()
    assert job_phase(cluster, "r") is None
    cluster.close()
