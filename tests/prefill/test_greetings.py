"""Who may give jobs to a prefill worker, until when, and what becomes of them when a connection is lost."""

from dataclasses import replace

from prefill.worker import JOB_TOKENS
from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import PeerLost
from protocol.messages_handoff import Hello, HelloAccepted, HelloRefused, JobFailed, KvDelivered, PrefillJob
from tests.prefill.test_worker import DECODE, PREFILL, PROMPT, Bench
from tests.scheduler.building import greedy


def test_a_greeting_for_the_process_that_had_this_port_before_is_not_answered() -> None:
    bench = Bench(greeted=False)
    bench.worker.on_peer(7, Hello(DECODE, bench.engine.kv.layout, Fingerprint("print"), to=PREFILL.instance + 1))
    assert bench.worker.outbox.decode == [] and bench.worker._peers == {}
    bench.worker.on_peer(7, Hello(DECODE, bench.engine.kv.layout, Fingerprint("print"), to=PREFILL.instance))
    assert len(bench.sent(HelloAccepted)) == 1


def test_who_was_declared_lost_is_refused_although_it_wakes_until_the_gateway_is_a_new_one() -> None:
    bench = Bench()
    hello = Hello(DECODE, bench.engine.kv.layout, Fingerprint("print"))
    bench.worker.on_gateway(PeerLost("decode-0", 7))
    bench.worker.on_peer(7, hello)
    bench.job()
    (refused,) = bench.sent(HelloRefused)
    assert isinstance(refused, HelloRefused) and "was declared lost" in refused.reason and bench.at_rest()
    bench.worker.reset()
    bench.worker.on_peer(7, hello)
    assert len(bench.sent(HelloAccepted)) == 1


def test_what_may_be_lost_with_a_data_connection_fails_at_once_and_nothing_else() -> None:
    bench = Bench()
    bench.job(1)
    bench.job(2)
    bench.run()
    lost, other = bench.sender.open_targets
    bench.sender.lost = [lost]
    bench.worker.step()
    (failed,) = bench.sent(JobFailed)
    assert isinstance(failed, JobFailed) and failed.reservation == lost.reservation
    assert failed.code == "kv_not_delivered" and failed.message == "the connection to decode-0 that carries KV was lost"
    bench.worker.on_peer(7, KvDelivered("r2", 0, other.reservation))
    bench.run()
    assert bench.at_rest()


def test_a_greeting_anew_drops_what_came_after_the_one_before() -> None:
    """The connection was lost: whatever was said of those jobs may be lost with it."""
    bench = Bench()
    bench.job(1)
    bench.run()
    assert not bench.at_rest()
    bench.worker.on_peer(7, Hello(DECODE, bench.engine.kv.layout, Fingerprint("print"), greeting=1))
    accepted = HelloAccepted(PREFILL, JOB_TOKENS, bench.engine.kv.layout, greeting=1, export=b"our pages")
    assert bench.sent(HelloAccepted)[-1] == accepted
    bench.job(2)  # of the old greeting, and overtaken by the new one
    bench.run()
    assert bench.at_rest()


def test_a_greeting_that_is_repeated_after_a_newer_one_drops_nothing() -> None:
    bench = Bench()
    newer = Hello(DECODE, bench.engine.kv.layout, Fingerprint("print"), greeting=1)
    bench.worker.on_peer(7, newer)
    bench.worker.on_peer(7, replace(newer, greeting=0))
    bench.worker.on_peer(7, PrefillJob("r1", 0, 1, PROMPT, greedy(5), 1, greeting=1))
    assert bench.worker.stats().waiting == 1
    assert [message.greeting for message in bench.sent(HelloAccepted) if isinstance(message, HelloAccepted)] == [1]
