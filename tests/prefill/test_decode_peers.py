"""Who may give jobs to a prefill worker, until when, and what becomes of them when a connection is lost."""

import pytest

from prefill.decode_peers import JOB_TOKENS
from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import PeerLost
from protocol.messages_handoff import Hello, HelloAccepted, HelloRefused, JobFailed, KvDelivered
from tests.prefill.driving import DECODE, PREFILL, Bench


def test_who_was_declared_lost_is_refused_although_it_wakes_until_the_gateway_is_a_new_one() -> None:
    bench = Bench()
    hello = Hello(DECODE, bench.planner.layout, Fingerprint("print"))
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
    lost, other = bench.sender.open_destinations
    bench.sender.lost = [lost]
    bench.worker.turn()
    (failed,) = bench.sent(JobFailed)
    assert isinstance(failed, JobFailed) and failed.reservation == lost.reservation
    assert failed.code == "kv_not_delivered" and failed.message == "the connection to decode-0 that carries KV was lost"
    bench.worker.on_peer(7, KvDelivered(other.reservation))
    bench.run()
    assert bench.at_rest()


@pytest.mark.parametrize("is_noticed_here", [True, False])
def test_a_session_that_is_lost_drops_its_jobs_and_a_greeting_begins_anew(is_noticed_here: bool) -> None:
    """Whatever was said of those jobs may be lost with it."""
    bench = Bench()
    bench.job(1)
    bench.run()
    assert not bench.at_rest()
    if is_noticed_here:
        bench.worker.on_session_lost(7)
        bench.run()
        assert bench.at_rest()
    bench.worker.on_peer(7, Hello(DECODE, bench.planner.layout, Fingerprint("print")))
    accepted = HelloAccepted(PREFILL, JOB_TOKENS, bench.planner.layout, offer=b"our answer")
    assert bench.sent(HelloAccepted)[-1] == accepted
    bench.run()
    assert bench.at_rest()
    bench.job(2)
    assert bench.worker.stats().waiting == 1
