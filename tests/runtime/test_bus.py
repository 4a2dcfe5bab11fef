import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import zmq

from protocol.errors import ConfigError
from protocol.message import MAX_MESSAGE_BYTES
from runtime.bus import MAX_RECEIVE, RECEIVE_BYTES, Dealer, Router, Wake
from runtime.session import ENVELOPE_BYTES

T = TypeVar("T")
Context = zmq.Context["zmq.Socket[bytes]"]


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def router(context: Context) -> Iterator[Router]:
    made = Router(context, "127.0.0.1")
    yield made
    made.close()


def gather(end: Dealer | Router, receive: Callable[[], list[T]], count: int) -> list[T]:
    """At least `count` messages, or what has come when nothing more does for two minutes."""
    found: list[T] = []
    while len(found) < count and end.socket.poll(120_000):
        found += receive()
    return found


def test_messages_arrive_in_order_and_answers_find_their_peer(context: Context, router: Router) -> None:
    dealers = [Dealer(context, router.endpoint, identity) for identity in (b"a#1", b"b#2")]
    for number in range(100):
        for dealer in dealers:
            assert dealer.send(b"%d" % number)
    got = gather(router, router.receive, 200)
    for identity in (b"a#1", b"b#2"):
        assert [raw for sender, raw in got if sender == identity] == [b"%d" % number for number in range(100)]
    assert router.send(b"b#2", b"for b") and router.send(b"a#1", b"for a")
    assert gather(dealers[0], dealers[0].receive, 1) == [b"for a"]
    assert gather(dealers[1], dealers[1].receive, 1) == [b"for b"]
    for dealer in dealers:
        dealer.close()


def test_nothing_to_receive_is_an_empty_list(context: Context, router: Router) -> None:
    dealer = Dealer(context, router.endpoint, b"a#1")
    assert (dealer.receive(), router.receive()) == ([], [])
    dealer.close()


def test_sending_to_a_peer_that_is_gone_does_not_block(context: Context) -> None:
    first = Router(context, "127.0.0.1")
    endpoint = first.endpoint
    first.close()
    dealer = Dealer(context, endpoint, b"a#1")
    assert dealer.send(b"early")
    assert dealer.receive() == []
    dealer.close()


def test_an_unknown_peer_is_told_apart(router: Router) -> None:
    assert not router.send(b"nobody#1", b"x")


def test_several_parts_count_as_one_message(context: Context, router: Router) -> None:
    dealer = Dealer(context, router.endpoint, b"a#1")
    dealer.socket.send_multipart([b"ab", b"", b"cd"])
    assert gather(router, router.receive, 1) == [(b"a#1", b"abcd")]
    dealer.close()


def test_the_system_chooses_the_port(context: Context) -> None:
    routers = [Router(context, "127.0.0.1") for _ in range(3)]
    endpoints = {router.endpoint for router in routers}
    assert len(endpoints) == 3
    assert all(endpoint.startswith("tcp://127.0.0.1:") and not endpoint.endswith(":0") for endpoint in endpoints)
    for router in routers:
        router.close()


def test_a_peer_that_comes_again_under_a_new_instance_is_another(context: Context, router: Router) -> None:
    for identity in (b"w#1", b"w#2"):
        dealer = Dealer(context, router.endpoint, identity)
        dealer.send(b"hello")
        assert gather(router, router.receive, 1) == [(identity, b"hello")]
        dealer.close()


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_wake_makes_a_poll_return_from_any_thread() -> None:
    wake = Wake()
    assert not readable(wake.fd)
    threads = [threading.Thread(target=wake.set) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert select.select([wake.fd], [], [], 120)[0] == [wake.fd]
    for thread in threads:
        thread.join()
    wake.clear()
    assert not readable(wake.fd)
    wake.clear()  # with nothing to forget
    wake.set()
    assert readable(wake.fd)
    wake.close()


class Flood:
    """A socket from which there is always more to take."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)
        self.num_taken = 0

    def recv_multipart(self, flags: int) -> list[bytes]:
        assert flags == zmq.NOBLOCK
        self.num_taken += 1
        return self.parts


@pytest.mark.parametrize(
    "size, expected", [(0, MAX_RECEIVE), (10, MAX_RECEIVE), (2**20, RECEIVE_BYTES // 2**20), (2**24, 1)]
)
def test_a_flood_is_taken_in_bounded_portions(size: int, expected: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router: Any = Router(context, "127.0.0.1")
    dealer: Any = Dealer(context, router.endpoint, b"x#1")
    router.close()
    dealer.close()
    context.term()
    router.socket, dealer.socket = Flood(b"x#1", bytes(size)), Flood(bytes(size))
    assert router.receive() == [(b"x#1", bytes(size))] * expected
    assert dealer.receive() == [bytes(size)] * expected
    assert router.socket.num_taken == dealer.socket.num_taken == expected


def close(*ends: Dealer | Router) -> None:
    for end in ends:
        end.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_names_and_both_kinds_of_address_can_be_dialled(context: Context, host: str) -> None:
    if host == "::1":
        try:
            socket.create_server((host, 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
    router = Router(context, host)
    dealer = Dealer(context, router.endpoint, b"a#1")
    assert dealer.send(b"hello") and router.socket.poll(120_000)
    assert router.receive() == [(b"a#1", b"hello")]
    close(dealer, router)


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1", "256.1.1.1", "a" * 70])
def test_a_host_that_is_not_ours_is_named(context: Context, host: str) -> None:
    with pytest.raises(ConfigError, match=f"host: got '{host}', expected an address of this machine"):
        Router(context, host)


def test_an_endpoint_that_is_none_leaves_no_socket(context: Context) -> None:
    with pytest.raises(zmq.ZMQError):  # a socket left open would warn, and warnings are errors
        Dealer(context, "nonsense", b"a#1")


def test_a_peer_that_dials_again_replaces_its_old_connection(context: Context) -> None:
    router = Router(context, "127.0.0.1")
    old = Dealer(context, router.endpoint, b"a#1")
    assert old.send(b"old") and router.socket.poll(120_000) and router.receive()
    new = Dealer(context, router.endpoint, b"a#1")
    assert new.send(b"new") and router.socket.poll(120_000)
    assert router.receive() == [(b"a#1", b"new")]
    assert router.send(b"a#1", b"answer") and new.socket.poll(120_000)
    assert new.receive() == [b"answer"]
    close(old, new, router)


def test_a_message_that_is_too_large_cuts_only_its_sender_off(context: Context) -> None:
    router = Router(context, "127.0.0.1")
    greedy, modest = (Dealer(context, router.endpoint, name) for name in (b"greedy#1", b"modest#2"))
    assert greedy.send(bytes(ENVELOPE_BYTES + MAX_MESSAGE_BYTES + 1)) and modest.send(b"hello")
    assert router.socket.poll(120_000)
    assert router.receive() == [(b"modest#2", b"hello")]
    assert not router.socket.poll(300)
    close(greedy, modest, router)
