"""Which hosts a Router binds on, and how it treats a peer that dials again or sends too much."""

import socket
from collections.abc import Iterator

import pytest
import zmq

from protocol.errors import ConfigError
from protocol.message import MAX_MESSAGE_BYTES
from runtime.bus import Dealer, Router
from runtime.session import ENVELOPE_BYTES

Context = zmq.Context["zmq.Socket[bytes]"]


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


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
