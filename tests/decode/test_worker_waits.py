"""Nothing waits for ever: silent peers, lost acknowledgements, gateways that take a worker with them."""

import pytest

from decode.prefill_peers import ASK_AGAIN_S, HELLO_DEADLINE_S
from decode.requests import HANDOVER_DEADLINE_S, HANDOVER_S_PER_TOKEN
from prefill.worker import DELIVERY_DEADLINE_S
from protocol.messages_handoff import JobFailed, KvDelivered
from scheduler.execution.streams import InlineStream
from tests.cluster import Cluster
from tests.decode.driving import (
    VOCAB,
    Phase,
    decode_phase,
    drive_to,
    expect_exact,
    expect_rest,
    greedy,
    job_phase,
    make_cluster,
    prompt_of,
    run_past_deadlines,
    slow_network,
)
from tests.doubles.backend_inproc import InprocNetwork
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import ManualStream

PARAMS = greedy(9)
PROMPT = prompt_of("r", 30)


def step(cluster: Cluster, times: int = 30) -> None:
    for _ in range(times):
        cluster.step()


def test_a_greeting_that_nobody_answers_fails_what_waits_for_it() -> None:
    clock = VirtualClock()
    cluster = make_cluster(clock=clock)
    (decode,) = cluster.decodes.values()
    cluster.assign("r", PROMPT, PARAMS)
    decode.outbox.prefill.clear()  # the greeting goes nowhere, and nobody calls the worker lost
    clock.advance(HELLO_DEADLINE_S - 1)
    step(cluster)
    assert decode_phase(cluster, "r") is Phase.RESERVING
    clock.advance(1)
    step(cluster)
    assert cluster.failures["r"].message == "prefill worker prefill-0 did not answer in 30 s"
    cluster.assign("again", PROMPT, PARAMS)  # it is greeted again
    cluster.run()
    expect_exact(cluster, "again", PROMPT, PARAMS)
    expect_rest(cluster)


def test_a_lost_acknowledgement_does_not_keep_prefills_pages() -> None:
    clock = VirtualClock()
    cluster = make_cluster(clock=clock, network=slow_network())
    (decode,), (prefill,) = cluster.decodes.values(), cluster.prefills.values()
    cluster.assign("r", PROMPT, PARAMS)
    drive_to(cluster, "r", Phase.SENDING)
    while decode_phase(cluster, "r") is not Phase.RUNNING:
        decode.step()
        decode.outbox.prefill[:] = [each for each in decode.outbox.prefill if not isinstance(each[1], KvDelivered)]
    cluster.run(lambda: bool(cluster.answers["r", 0].finish))
    clock.advance(DELIVERY_DEADLINE_S - 1)
    step(cluster)
    assert job_phase(cluster, "r") is Phase.SENDING
    clock.advance(1)
    prefill.step()
    assert isinstance(prefill.outbox.decode[0][1], JobFailed)
    cluster.run()
    assert not cluster.failures
    expect_exact(cluster, "r", PROMPT, PARAMS)
    expect_rest(cluster)


def test_a_long_prompt_on_a_slow_core_is_no_fault() -> None:
    clock = VirtualClock()
    runner = FakeRunner(vocab_size=VOCAB, context_length=4096)
    cluster = make_cluster(runner=runner, clock=clock, num_pages=2048, chunk_size=512)
    long = prompt_of("long", 3000)
    cluster.assign("long", long, PARAMS)
    drive_to(cluster, "long", Phase.REQUESTED)
    clock.advance(max(HANDOVER_DEADLINE_S + 1, HANDOVER_S_PER_TOKEN * 3000 - 1))
    cluster.run()
    expect_exact(cluster, "long", long, PARAMS)
    cluster.assign("stuck", long, PARAMS)
    drive_to(cluster, "stuck", Phase.REQUESTED)
    clock.advance(HANDOVER_S_PER_TOKEN * 3000)
    cluster.run()
    assert cluster.failures["stuck"].message == "no KV from prefill-0 in 300 s"
    expect_rest(cluster)


@pytest.mark.parametrize("state", [Phase.COMPUTING, Phase.SENDING])
def test_a_decode_worker_that_dies_with_the_gateway_leaves_nothing_at_prefill(state: Phase) -> None:
    network = InprocNetwork(lambda parcel: [parcel.delayed(10**6)])
    cluster = make_cluster("1P2D", network=network, streams=lambda: (ManualStream(), InlineStream()))
    cluster.assign("r", PROMPT, PARAMS)
    drive_to(cluster, "r", state)
    (prefill,) = cluster.prefills.values()
    dead = next(instance for instance, worker in cluster.decodes.items() if ("r", 0) in worker._requests.by_key)
    cluster.executor(cluster.decodes.pop(dead)).close()
    assert (state is Phase.COMPUTING) == (prefill._sender.counters.get("frames", 0) == 0)
    for worker in cluster.workers:
        worker.reset()
    cluster.network.fault = None
    cluster.run()
    assert prefill._sender.counters["bytes_in_flight_now"] == 0
    (alive,) = cluster.decodes
    for name in ("a", "b"):  # pairs go on
        cluster.assign(name, PROMPT, PARAMS)
        cluster.run()
        expect_exact(cluster, name, PROMPT, PARAMS)
    assert set(prefill._peers.by_instance) == {alive}
    expect_rest(cluster)


def test_after_a_new_gateway_no_page_waits_for_a_writer_that_nobody_knows_any_more() -> None:
    clock = VirtualClock()
    cluster = make_cluster(clock=clock, network=InprocNetwork(in_place=True))
    (decode,) = cluster.decodes.values()
    cluster.assign("r", PROMPT, PARAMS)
    drive_to(cluster, "r", Phase.REQUESTED)
    decode.reset()
    decode.outbox.prefill.clear()  # its last words are lost with the connection
    step(cluster)
    assert decode.planner.book.pages.counts().quarantined > 0
    run_past_deadlines(cluster, clock, ASK_AGAIN_S)
    expect_rest(cluster)
