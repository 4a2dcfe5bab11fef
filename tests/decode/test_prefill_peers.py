from typing import cast

import pytest

from decode.prefill_peers import HELLO_DEADLINE_S, PrefillPeers
from protocol.errors import WireError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import HelloAccepted
from transfer.landing.frame_receiver import FrameReceiver
from transfer.offers import Agreed

LAYOUT = KvLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=4, page_size=16, dtype="float32")
PREFILL, DECODE = WorkerAddress("p", 1), WorkerAddress("d", 2)
AGREED = Agreed("shm", in_place=True)


class Receiver:
    """Agrees to every answer, unless it `refuses`."""

    refuses = False

    def __init__(self) -> None:
        self.answers: dict[int, bytes] = {}  # of those that were met and not lost

    def offer(self, instance: int) -> bytes:
        return b"our pages"

    def answered(self, instance: int, answer: bytes) -> Agreed:
        if self.refuses:
            raise WireError("it must")
        self.answers[instance] = answer
        return AGREED

    def lose(self, instance: int) -> None:
        self.answers.pop(instance, None)


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
    peer.accept(100, LAYOUT, AGREED)
    peer.sent(1, 60)
    assert (peer.takes_jobs, peer.tokens_queued) == (True, 60)
    peer.sent(2, 70)  # a long prompt goes whenever any credit is left
    assert (peer.takes_jobs, peer.tokens_queued) == (False, 130)
    peer.settle(1)
    assert (peer.takes_jobs, peer.tokens_queued) == (True, 70)
    for reservation in (1, 3, 2, 2):  # again, never sent, and twice
        peer.settle(reservation)
    assert peer.tokens_queued == 0
    peer.accept(10**9, LAYOUT, AGREED)  # it grants once
    assert peer.granted == 100


def test_a_peer_is_greeted_once_until_it_is_lost(peers: PrefillPeers) -> None:
    hello = peers.greet(PREFILL, now=1.0)
    assert hello is not None and (hello.address, hello.to, hello.offer) == (DECODE, 1, b"our pages")
    assert peers.greet(PREFILL, now=2.0) is None
    assert peers.silent(HELLO_DEADLINE_S + 0.9) == []
    assert peers.silent(HELLO_DEADLINE_S + 1.0) == [peers.get(1)]
    peers.lose(1)
    assert peers.greet(PREFILL, now=3.0) == hello


def test_how_kv_comes_from_a_peer_that_accepts_is_what_its_answer_led_to(peers: PrefillPeers) -> None:
    peers.greet(PREFILL, now=1.0)
    peer = peers.get(1)
    assert peer is not None
    assert (peer.accepted, peer.in_place, peers.backends) == (False, False, {})
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT, b"yes")) == ""
    assert (peer.accepted, peer.in_place, peers.backends) == (True, True, {"p": "shm"})


def test_a_refusal_stays_until_the_peer_is_greeted_anew(peers: PrefillPeers, receiver: Receiver) -> None:
    peers.greet(PREFILL, now=1.0)
    peer = peers.get(1)
    assert peer is not None
    receiver.refuses = True
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT)) == "it must"
    receiver.refuses = False
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT)) == "it must"
    assert not peer.takes_jobs


@pytest.mark.parametrize("forget_all", [True, False])
def test_what_an_accepted_peer_answers_is_the_receivers_until_the_peer_is_lost(
    peers: PrefillPeers, receiver: Receiver, forget_all: bool
) -> None:
    peers.greet(PREFILL, now=1.0)
    peer = peers.get(1)
    assert peer is not None and receiver.answers == {}
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT, b"pages")) == ""
    assert receiver.answers == {1: b"pages"}
    if forget_all:
        peers.forget_all()
    else:
        peers.lose(1)
    assert receiver.answers == {}
