from decode.prefill_peers import PrefillPeers
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import WorkerAddress

LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=4, page_size=16, dtype="float32")


def test_jobs_are_credited_until_they_are_computed_or_over() -> None:
    peers = PrefillPeers()
    assert peers.meet(WorkerAddress("p", 1), answer_by=1.0)
    peer = peers.get(1)
    assert peer is not None and not peer.takes_jobs
    peer.accept(100, LAYOUT)
    peer.sent(1, 60)
    assert (peer.takes_jobs, peer.tokens_queued) == (True, 60)
    peer.sent(2, 70)  # a long prompt goes whenever any credit is left
    assert (peer.takes_jobs, peer.tokens_queued) == (False, 130)
    peer.settle(1)
    assert (peer.takes_jobs, peer.tokens_queued) == (True, 70)
    for reservation in (1, 3, 2, 2):  # again, never sent, and twice
        peer.settle(reservation)
    assert peer.tokens_queued == 0
    peer.accept(10**9, LAYOUT)  # it grants once
    assert peer.granted == 100
