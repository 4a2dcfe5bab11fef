from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from runtime import bus
from runtime.bus import DIAL_MS, SILENT_MS, Dealer, LinkWatch
from tests.runtime.rebinding import bound, bound_again
from tests.runtime.silent_peer import SilentPeer


@pytest.fixture
def context() -> Iterator[Any]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def until(watch: LinkWatch, made: int, broken: int) -> None:
    for _ in range(12_000):
        watch.look()
        if (watch.num_made, watch.num_broken) == (made, broken):
            return
        watch._events.poll(10)
    raise AssertionError((watch.num_made, watch.num_broken))


def test_connections_that_are_made_and_lost_are_counted(context: Any) -> None:
    pull, endpoint = bound(context, zmq.PULL)
    push = context.socket(zmq.PUSH)
    push.setsockopt(zmq.RECONNECT_IVL, 20)
    watch = LinkWatch(push)
    watch.look()
    assert (watch.num_made, watch.num_broken) == (0, 0)
    push.connect(endpoint)
    until(watch, 1, 0)
    for number in (1, 2):
        pull.close(0)
        until(watch, number, number)
        pull = bound_again(context, zmq.PULL, endpoint)
        until(watch, number + 1, number)
    push.send(b"still there")
    assert pull.poll(120_000) and pull.recv() == b"still there"
    watch.close()
    push.close(0)
    pull.close(0)


def test_a_dealer_tells_that_its_connection_was_made_again_but_not_that_it_was_made(context: Any) -> None:
    router, endpoint = bound(context, zmq.ROUTER)
    dealer = Dealer(context, endpoint, b"a#1", watched=True)
    dealer.send(b"first")
    assert router.poll(120_000) and router.recv_multipart() == [b"a#1", b"first"]
    assert not dealer.has_returned()
    router.close(0)
    router = bound_again(context, zmq.ROUTER, endpoint)
    for _ in range(12_000):
        if dealer.has_returned():
            break
        router.poll(10)
    else:
        raise AssertionError("not told")
    assert not dealer.has_returned()
    dealer.close()
    router.close(0)


def test_a_context_ends_after_a_watched_socket_was_closed() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, endpoint = bound(context, zmq.ROUTER)
    Dealer(context, endpoint, b"a#1", watched=True).close()
    with pytest.raises(zmq.ZMQError):
        Dealer(context, "nonsense", b"a#1", watched=True)
    router.close(0)
    context.term()


def test_a_watched_connection_whose_path_swallows_everything_is_made_again(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "BEAT_MS", 20)
    monkeypatch.setattr(bus, "SILENT_MS", 100)
    with SilentPeer(b"ROUTER") as peer:
        dealer = Dealer(context, peer.endpoint, b"a#1", watched=True)
        is_noticed = any(dealer.has_returned() or dealer.socket.poll(10) for _ in range(6_000))
        dealer.close()
    assert is_noticed, "the path is believed to be there"


def test_what_a_dealer_sends_must_be_acknowledged_by_the_hosts_kernel_and_so_must_its_attempt_to_connect(
    context: Any,
) -> None:
    """A path that swallows packets needs another host: tests/network/test_silent_path.py."""
    with SilentPeer(b"ROUTER") as peer:
        dealer = Dealer(context, peer.endpoint, b"a#1")
        assert dealer.socket.getsockopt(zmq.TCP_MAXRT) == SILENT_MS
        assert dealer.socket.getsockopt(zmq.CONNECT_TIMEOUT) == DIAL_MS
        dealer.close()
