from typing import cast

import pytest

from decode.prefill_peers import ASK_AGAIN_S, HELLO_DEADLINE_S, PrefillPeers
from protocol.errors import WireError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import CancelJob, Hello, HelloAccepted
from tests.doubles.clock import VirtualClock
from transfer.landing.frame_receiver import FrameReceiver
from transfer.offers import Agreed
from worker.requests import Outbox

LAYOUT = KvLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=4, page_size=16, dtype="float32")
PREFILL, DECODE = WorkerAddress("p", 1), WorkerAddress("d", 2)
AGREED = Agreed("shm", in_place=True)


class Receiver:
    """Agrees to every answer, unless it `refuses`."""

    refuses = False

    def __init__(self) -> None:
        self.answers: dict[int, bytes] = {}  # of those that were met and not lost
        self.written: set[int] = set()  # reservations that may still be written

    def offer(self, instance: int) -> bytes:
        return b"our pages"

    def answered(self, instance: int, answer: bytes) -> Agreed:
        if self.refuses:
            raise WireError("it must")
        self.answers[instance] = answer
        return AGREED

    def may_be_written(self, reservation: int) -> bool:
        return reservation in self.written

    def lose(self, instance: int) -> None:
        self.answers.pop(instance, None)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1.0)


@pytest.fixture
def peers(receiver: Receiver, outbox: Outbox, clock: VirtualClock) -> PrefillPeers:
    return PrefillPeers(DECODE, LAYOUT, Fingerprint("print"), cast(FrameReceiver, receiver), outbox, clock)


def test_jobs_are_credited_until_they_are_computed_or_over(peers: PrefillPeers) -> None:
    peers.greet(PREFILL)
    peer = peers.by_instance[1]
    assert not peers.takes_jobs(1)
    peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT))
    peer.sent(1, 60)
    assert (peers.takes_jobs(1), peer.tokens_queued) == (True, 60)
    peer.sent(2, 70)  # a long prompt goes whenever any credit is left
    assert (peers.takes_jobs(1), peer.tokens_queued) == (False, 130)
    peer.settle(1)
    assert (peers.takes_jobs(1), peer.tokens_queued) == (True, 70)
    for reservation in (1, 3, 2, 2):  # again, never sent, and twice
        peer.settle(reservation)
    assert peer.tokens_queued == 0
    peers.answered(peer, HelloAccepted(PREFILL, 10**9, LAYOUT))  # it grants once
    assert peer.granted == 100


def test_a_peer_is_greeted_once_until_it_is_lost(peers: PrefillPeers, outbox: Outbox) -> None:
    peers.greet(PREFILL)
    peers.greet(PREFILL)
    ((to, hello),) = outbox.prefill
    assert to == PREFILL and isinstance(hello, Hello)
    assert (hello.address, hello.to, hello.offer) == (DECODE, 1, b"our pages")
    assert peers.give_up(HELLO_DEADLINE_S + 0.9) == [] and 1 in peers.by_instance
    [(instance, reason)] = peers.give_up(HELLO_DEADLINE_S + 1.0)
    assert (instance, reason.message) == (1, "prefill worker p did not answer in 30 s") and not peers.by_instance
    peers.greet(PREFILL)
    assert outbox.prefill == [(PREFILL, hello), (PREFILL, hello)]


def test_how_kv_comes_from_a_peer_that_accepts_is_what_its_answer_led_to(peers: PrefillPeers) -> None:
    peers.greet(PREFILL)
    peer = peers.by_instance[1]
    assert (peer.accepted, peer.in_place, peers.backends) == (False, False, {})
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT, b"yes")) == ""
    assert (peer.accepted, peer.in_place, peers.backends) == (True, True, {"p": "shm"})


def test_a_refusal_stays_until_the_peer_is_greeted_anew(peers: PrefillPeers, receiver: Receiver) -> None:
    peers.greet(PREFILL)
    peer = peers.by_instance[1]
    receiver.refuses = True
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT)) == "it must"
    receiver.refuses = False
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT)) == "it must"
    assert not peers.takes_jobs(1)


@pytest.mark.parametrize("forget_all", [True, False])
def test_what_an_accepted_peer_answers_is_the_receivers_until_the_peer_is_lost(
    peers: PrefillPeers, receiver: Receiver, forget_all: bool
) -> None:
    peers.greet(PREFILL)
    peer = peers.by_instance[1]
    assert receiver.answers == {}
    assert peers.answered(peer, HelloAccepted(PREFILL, 100, LAYOUT, b"pages")) == ""
    assert receiver.answers == {1: b"pages"}
    if forget_all:
        peers.forget_all()
    else:
        peers.lose(1)
    assert receiver.answers == {}


def test_a_peer_that_may_still_write_is_asked_again_until_it_has_stopped(
    peers: PrefillPeers, receiver: Receiver, outbox: Outbox, clock: VirtualClock
) -> None:
    peers.greet(PREFILL)
    outbox.prefill.clear()
    receiver.written = {4}
    for reservation in (4, 5):
        peers.closed(PREFILL, reservation)
    for _ in range(3):
        peers.ask_again(clock.now())
        assert outbox.prefill == []
        clock.advance(ASK_AGAIN_S)
        peers.ask_again(clock.now())
        assert outbox.prefill == [(PREFILL, CancelJob(4))]
        outbox.prefill.clear()
    receiver.written.clear()
    clock.advance(ASK_AGAIN_S)
    peers.ask_again(clock.now())
    assert outbox.prefill == []


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_peer_that_is_forgotten_is_greeted_to_free_its_seat_unless_it_is_dead(
    peers: PrefillPeers, receiver: Receiver, outbox: Outbox, clock: VirtualClock, is_dead: bool
) -> None:
    peers.greet(PREFILL)
    receiver.written = {4}
    peers.closed(PREFILL, 4)
    outbox.prefill.clear()
    peers.lose(1)
    if is_dead:
        peers.never_ask(1)
    clock.advance(ASK_AGAIN_S)
    peers.ask_again(clock.now())
    assert [type(message) for _, message in outbox.prefill] == ([] if is_dead else [Hello])
