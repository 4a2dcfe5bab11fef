from decode.prefill_peers import PrefillPeers
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import WorkerAddress

LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=4, page_size=16, dtype="float32")


def test_credit_beyond_what_was_granted_is_not_believed() -> None:
    peers = PrefillPeers()
    assert peers.meet(WorkerAddress("p", 1), answer_by=1.0)
    peer = peers.get(1)
    assert peer is not None and not peer.takes_jobs
    peer.accept(100, LAYOUT)
    peer.credit -= 130  # a long prompt goes whenever any credit is left
    assert (peer.takes_jobs, peer.tokens_queued) == (False, 130)
    peer.give_back(60)
    assert (peer.credit, peer.tokens_queued, peer.takes_jobs) == (30, 70, True)
    peer.give_back(2**62)
    assert (peer.credit, peer.tokens_queued) == (100, 0)
    peer.accept(10**9, LAYOUT)  # it grants once
    assert peer.credit == peer.granted == 100
