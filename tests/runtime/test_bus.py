import select
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import zmq

from runtime.bus import Dealer, Router, Wake

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
