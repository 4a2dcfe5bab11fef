"""Nothing waits for ever: silent peers, lost acknowledgements, gateways that take a worker with them."""

from decode.prefill_peers import HELLO_DEADLINE_S
from decode.requests import HANDOVER_DEADLINE_S, HANDOVER_S_PER_TOKEN
from prefill.worker import DELIVERY_DEADLINE_S
from protocol.messages_handoff import JobFailed, KvDelivered
from tests.decode.driving import VOCAB, Phase, decode_phase, drive_to, greedy, job_phase, make_cluster, slow_network
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner

PARAMS = greedy(9)


def test_a_greeting_that_nobody_answers_fails_what_waits_for_it() -> None:
    cluster = make_cluster(clock=VirtualClock())
    cluster.ask("r", 30, PARAMS)
    cluster.decode.outbox.prefill.clear()  # the greeting goes nowhere, and nobody calls the worker lost
    cluster.clock.advance(HELLO_DEADLINE_S - 1)
    cluster.steps(30)
    assert decode_phase(cluster, "r") is Phase.RESERVING
    cluster.clock.advance(1)
    cluster.steps(30)
    assert cluster.failures["r"].message == "prefill worker prefill-0 did not answer in 30 s"
    cluster.ask("again", 30, PARAMS)  # it is greeted again
    cluster.run()
    cluster.expect_end(failed=["r"])


def test_a_lost_acknowledgement_does_not_keep_prefills_pages() -> None:
    cluster = make_cluster(clock=VirtualClock(), network=slow_network())
    decode, prefill = cluster.decode, cluster.prefill
    cluster.ask("r", 30, PARAMS)
    drive_to(cluster, "r", Phase.SENDING)
    while decode_phase(cluster, "r") is not Phase.RUNNING:
        decode.turn()
        decode.outbox.prefill[:] = [sent for sent in decode.outbox.prefill if not isinstance(sent[1], KvDelivered)]
    cluster.run(lambda: bool(cluster.answers["r", 0].finish))
    cluster.clock.advance(DELIVERY_DEADLINE_S - 1)
    cluster.steps(30)
    assert job_phase(cluster, "r") is Phase.SENDING
    cluster.clock.advance(1)
    prefill.turn()
    assert isinstance(prefill.outbox.decode[0][1], JobFailed)
    cluster.run()
    cluster.expect_end()


def test_a_long_prompt_on_a_slow_core_is_no_fault() -> None:
    runner = FakeRunner(vocab_size=VOCAB, context_length=4096)
    cluster = make_cluster(runner=runner, clock=VirtualClock(), num_pages=2048, chunk_size=512)
    cluster.ask("long", 3000, PARAMS)
    drive_to(cluster, "long", Phase.REQUESTED)
    cluster.clock.advance(max(HANDOVER_DEADLINE_S + 1, HANDOVER_S_PER_TOKEN * 3000 - 1))
    cluster.run()
    assert not cluster.failures
    cluster.ask("stuck", 3000, PARAMS)
    drive_to(cluster, "stuck", Phase.REQUESTED)
    cluster.clock.advance(HANDOVER_S_PER_TOKEN * 3000)
    cluster.run()
    assert cluster.failures["stuck"].message == "no KV from prefill-0 in 300 s"
    cluster.expect_end(failed=["stuck"])
