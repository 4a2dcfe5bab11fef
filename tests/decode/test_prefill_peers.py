from typing import cast

import pytest

from decode.prefill_peers import HELLO_DEADLINE_S, PrefillPeers
from protocol.errors import WireError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import HelloAccepted
from transfer.landing.frame_receiver import FrameReceiver

LAYOUT = KvLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=4, page_size=16, dtype="float32")
PREFILL, DECODE = WorkerAddress("p", 1), WorkerAddress("d", 2)


class Receiver:
    """Admits as `seat` says."""

    seat = 7

    def __init__(self) -> None:
        self.exports: dict[int, bytes] = {}  # of those that were met and not lost

    def offer(self, instance: int) -> None:
        """Nothing is offered."""

    def admit_writer(self, instance: int, in_place: bool, device_writer: int = 0) -> int:
        if self.seat < 0:
            raise WireError("it must")
        return self.seat if in_place else 0

    def meet(self, instance: int, export: bytes) -> None:
        self.exports[instance] = export

    def lose(self, instance: int) -> None:
        self.exports.pop(instance, None)

    def backend(self, instance: int, in_place: bool) -> str:
        return "shm" if in_place else "zmq"


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def peers(receiver: Receiver) -> PrefillPeers:
    return PrefillPeers(DECODE, LAYOUT, Fingerprint("print"), cast(FrameReceiver, receiver))


def test_jobs_are_credited_until_they_are_computed_or_over(peers: PrefillPeers) -> None:
    assert peers.greet(PREFILL, now=1.0) is not None
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


def test_a_peer_is_greeted_once_until_it_is_lost(peers: PrefillPeers) -> None:
    hello = peers.greet(PREFILL, now=1.0)
    assert hello is not None and (hello.address, hello.to) == (DECODE, 1)
    assert peers.greet(PREFILL, now=2.0) is None
    assert peers.silent(HELLO_DEADLINE_S + 0.9) == []
    assert peers.silent(HELLO_DEADLINE_S + 1.0) == [peers.get(1)]
    peers.lose(1)
    assert peers.greet(PREFILL, now=3.0) == hello


def test_a_peer_that_accepts_has_the_seat_that_it_was_offered(peers: PrefillPeers) -> None:
    peers.greet(PREFILL, now=1.0)
    peer = peers.get(1)
    assert peer is not None
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT, True)) == ""
    assert (peer.accepted, peer.seat, peers.backends) == (True, 7, {"p": "shm"})


def test_a_refusal_stays_until_the_peer_is_greeted_anew(peers: PrefillPeers, receiver: Receiver) -> None:
    peers.greet(PREFILL, now=1.0)
    peer = peers.get(1)
    assert peer is not None
    receiver.seat = -1
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT)) == "it must"
    receiver.seat = 7
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT)) == "it must"
    assert not peer.takes_jobs


@pytest.mark.parametrize("forget_all", [True, False])
def test_what_an_accepted_peer_exports_is_the_receivers_until_the_peer_is_lost(
    peers: PrefillPeers, receiver: Receiver, forget_all: bool
) -> None:
    peers.greet(PREFILL, now=1.0)
    peer = peers.get(1)
    assert peer is not None and receiver.exports == {}
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT, export=b"pages")) == ""
    assert receiver.exports == {1: b"pages"}
    if forget_all:
        peers.forget_all()
    else:
        peers.lose(1)
    assert receiver.exports == {}
