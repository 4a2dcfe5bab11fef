"""Pages that prefill writes itself: who is cancelled, fails or loses prefill does not give them to others too early."""

from collections.abc import Iterator

import pytest

from decode.prefill_peers import ASK_AGAIN_S
from decode.worker import DecodeWorker
from prefill.worker import PrefillWorker
from protocol.messages_handoff import HelloAccepted, JobStopped
from tests.cluster import Cluster
from tests.decode.driving import Phase, drive_to, expect_exact, expect_rest, greedy, make_cluster, prompt_of
from tests.doubles.backend_inproc import InprocNetwork, Parcel
from tests.doubles.clock import VirtualClock

PARAMS = greedy(12)
PROMPT = prompt_of("victim", 61)
STATES = [Phase.REQUESTED, Phase.RECEIVING, Phase.WAITING, Phase.COMPUTING, Phase.SENDING]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cluster(clock: VirtualClock) -> Iterator[Cluster]:
    made = make_cluster(network=InprocNetwork(lambda parcel: [parcel.delayed(2)], in_place=True), clock=clock)
    yield made
    made.close()


def pair_of(cluster: Cluster) -> tuple[PrefillWorker, DecodeWorker]:
    (prefill,), (decode,) = cluster.prefills.values(), cluster.decodes.values()
    return prefill, decode


def quarantined(decode: DecodeWorker) -> int:
    """Pages that may not be used, after a few turns of decode alone."""
    for _ in range(3):
        decode.step()
    return decode.planner.book.pages.counts().quarantined


def test_only_headers_travel(cluster: Cluster) -> None:
    sizes: list[int] = []

    def weigh(parcel: Parcel) -> list[Parcel]:
        sizes.append(len(parcel.parts))
        return [parcel]

    cluster.network.fault = weigh
    cluster.assign("r", PROMPT, PARAMS, 2)
    cluster.run()
    assert sizes[:-1] == [1] * (len(sizes) - 1) and sizes[-1] == 2  # the last message has a payload
    assert pair_of(cluster)[1].stats().transfer == {"prefill-0": "shm"}
    expect_exact(cluster, "r", PROMPT, PARAMS, 2)
    expect_rest(cluster)


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_cancelled_waits_for_prefill_to_stop(cluster: Cluster, state: Phase, n: int) -> None:
    cluster.assign("victim", PROMPT, PARAMS, n)
    drive_to(cluster, "victim", state)
    _, decode = pair_of(cluster)
    cluster.cancel("victim")
    assert quarantined(decode) >= decode.planner.layout.num_pages(len(PROMPT))
    cluster.assign("next", prompt_of("next", 50), PARAMS, 2)
    cluster.run()
    expect_exact(cluster, "next", prompt_of("next", 50), PARAMS, 2)
    expect_rest(cluster)


def test_what_comes_whole_is_free_at_once(cluster: Cluster) -> None:
    cluster.assign("r", PROMPT, PARAMS)
    drive_to(cluster, "r", Phase.RUNNING)
    cluster.cancel("r")
    cluster.run(lambda: not pair_of(cluster)[1].planner.in_flight)
    assert quarantined(pair_of(cluster)[1]) == 0


def test_an_answer_that_is_lost_is_asked_for_again(cluster: Cluster, clock: VirtualClock) -> None:
    cluster.assign("victim", PROMPT, PARAMS)
    drive_to(cluster, "victim", Phase.COMPUTING)
    prefill, decode = pair_of(cluster)
    reservation = decode._requests.by_key["victim", 0].reservation
    cluster.cancel("victim")
    cluster.step()
    answers = [message for _, message in prefill.outbox.decode if isinstance(message, JobStopped)]
    assert answers == [JobStopped(reservation)]
    prefill.outbox.decode = [each for each in prefill.outbox.decode if each[1] not in answers]
    for _ in range(3):
        cluster.step()
    assert quarantined(decode) > 0
    clock.advance(ASK_AGAIN_S)
    cluster.run()
    expect_rest(cluster)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_lost_prefill_worker_may_write_until_it_has_let_go(
    cluster: Cluster, clock: VirtualClock, state: Phase
) -> None:
    cluster.assign("victim", PROMPT, PARAMS)
    drive_to(cluster, "victim", state)
    prefill, decode = pair_of(cluster)
    cluster.lose_prefill(next(iter(cluster.prefills)))
    for _ in range(2):
        clock.advance(10 * ASK_AGAIN_S)
        assert quarantined(decode) > 0  # silence proves nothing
        assert decode.planner.book.rows.num_free == decode.planner.book.rows.num_rows - 1
        assert decode.outbox.prefill == []  # and nobody is asked
    prefill._sender.close()
    assert quarantined(decode) == 0
    expect_rest(cluster)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_new_greeting_frees_what_the_one_before_left(cluster: Cluster, state: Phase) -> None:
    cluster.assign("victim", PROMPT, PARAMS)
    drive_to(cluster, "victim", state)
    _, decode = pair_of(cluster)
    decode.reset()
    decode.outbox.prefill.clear()  # the cancels are lost with the connection
    assert quarantined(decode) > 0
    cluster.assign("next", prompt_of("next", 50), PARAMS)
    cluster.run()
    expect_exact(cluster, "next", prompt_of("next", 50), PARAMS)
    expect_rest(cluster)


def test_a_second_answer_to_a_greeting_changes_nothing(cluster: Cluster) -> None:
    cluster.assign("r", PROMPT, PARAMS)
    drive_to(cluster, "r", Phase.REQUESTED)
    prefill, decode = pair_of(cluster)
    (instance,) = cluster.prefills
    decode.on_peer(instance, HelloAccepted(cluster.addresses[instance], 10**9, prefill.planner.layout))
    cluster.run()
    expect_exact(cluster, "r", PROMPT, PARAMS)
    assert decode.stats().transfer == {"prefill-0": "shm"}
    expect_rest(cluster)
