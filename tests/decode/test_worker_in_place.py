"""Pages that prefill writes itself: who is cancelled, fails or loses prefill does not give them to others too early."""

from collections.abc import Iterator

import pytest

from decode.prefill_peers import ASK_AGAIN_S
from decode.worker import DecodeWorker
from protocol.messages_handoff import JobStopped
from tests.decode.driving import Driven, Phase, drive_to, expect_rest, greedy, make_cluster
from tests.doubles.backend_inproc import InprocNetwork, Packet
from tests.doubles.clock import VirtualClock

PARAMS = greedy(12)
STATES = [Phase.REQUESTED, Phase.RECEIVING, Phase.WAITING, Phase.COMPUTING, Phase.SENDING]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cluster(clock: VirtualClock) -> Iterator[Driven]:
    made = make_cluster(network=InprocNetwork(lambda packet: [packet.delayed(2)], in_place=True), clock=clock)
    yield made
    made.close()


def quarantined(decode: DecodeWorker) -> int:
    """Pages that may not be used, after a few turns of decode alone."""
    for _ in range(3):
        decode.turn()
    return decode.planner.kv_manager.pages.counts().quarantined


def test_only_headers_travel(cluster: Driven) -> None:
    sizes: list[int] = []

    def weigh(packet: Packet) -> list[Packet]:
        sizes.append(len(packet.parts))
        return [packet]

    cluster.network.fault = weigh
    cluster.ask("r", 61, PARAMS, 2)
    cluster.run()
    assert sizes[:-1] == [1] * (len(sizes) - 1) and sizes[-1] == 2  # the last message has a payload
    assert cluster.decode.stats().transfer == {"prefill-0": "shm"}
    cluster.expect_end()


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_cancelled_waits_for_prefill_to_stop(cluster: Driven, state: Phase, n: int) -> None:
    cluster.ask("victim", 61, PARAMS, n)
    drive_to(cluster, "victim", state)
    cluster.cancel("victim")
    assert quarantined(cluster.decode) >= cluster.decode.planner.layout.num_pages(61)
    cluster.ask("next", 50, PARAMS, 2)
    cluster.run()
    cluster.expect_end("victim")


def test_what_comes_whole_is_free_at_once(cluster: Driven) -> None:
    cluster.ask("r", 61, PARAMS)
    drive_to(cluster, "r", Phase.RUNNING)
    cluster.cancel("r")
    cluster.run(lambda: not cluster.decode.planner.in_flight)
    assert quarantined(cluster.decode) == 0


def test_an_answer_that_is_lost_is_asked_for_again(cluster: Driven, clock: VirtualClock) -> None:
    cluster.ask("victim", 61, PARAMS)
    drive_to(cluster, "victim", Phase.COMPUTING)
    prefill, decode = cluster.prefill, cluster.decode
    reservation = decode.served.by_key["victim", 0].reservation
    cluster.cancel("victim")
    cluster.turn()
    answers = [message for _, message in prefill.outbox.decode if isinstance(message, JobStopped)]
    assert answers == [JobStopped(reservation)]
    prefill.outbox.decode = [sent for sent in prefill.outbox.decode if sent[1] not in answers]
    cluster.steps(3)
    assert quarantined(decode) > 0
    clock.advance(ASK_AGAIN_S)
    cluster.run()
    cluster.expect_end("victim")


@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_lost_prefill_worker_may_write_until_it_has_let_go(
    cluster: Driven, clock: VirtualClock, state: Phase
) -> None:
    cluster.ask("victim", 61, PARAMS)
    drive_to(cluster, "victim", state)
    prefill, decode = cluster.prefill, cluster.decode
    cluster.lose_prefill(next(iter(cluster.prefills)))
    for _ in range(2):
        clock.advance(10 * ASK_AGAIN_S)
        assert quarantined(decode) > 0  # silence proves nothing
        assert decode.planner.kv_manager.rows.num_free == decode.planner.kv_manager.rows.num_rows - 1
        assert decode.outbox.prefill == []  # and nobody is asked
    prefill._sender.close()
    assert quarantined(decode) == 0
    expect_rest(cluster)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_new_greeting_frees_what_the_one_before_left(cluster: Driven, state: Phase) -> None:
    cluster.ask("victim", 61, PARAMS)
    drive_to(cluster, "victim", state)
    decode = cluster.decode
    decode.reset()
    decode.outbox.prefill.clear()  # the cancels are lost with the connection
    assert quarantined(decode) > 0
    cluster.ask("next", 50, PARAMS)
    cluster.run()
    cluster.expect_end("victim")
