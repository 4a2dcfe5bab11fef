"""The proxy itself, between two sockets of ZMQ."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import zmq

from tests.faults.deployment import wait_until
from tests.proxy.faults import Doubles, Holds
from tests.proxy.proxy import Cut, Proxy, Way


@dataclass
class Pair:
    """A PUSH that dials a PULL through a gate."""

    proxy: Proxy
    push: zmq.Socket[bytes]
    pull: zmq.Socket[bytes]

    def send(self, *parts: bytes) -> None:
        self.push.send_multipart(parts)

    def got(self) -> list[bytes]:
        assert self.pull.poll(10_000)
        return self.pull.recv_multipart()


@pytest.fixture
def pair() -> Iterator[Pair]:
    proxy, context = Proxy(), zmq.Context[zmq.Socket[bytes]]()
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    push.setsockopt(zmq.RECONNECT_IVL, 5)
    push.connect(proxy.before(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}", "data", 1))
    yield Pair(proxy, push, pull)
    context.destroy(0)
    proxy.close()


def test_messages_pass(pair: Pair) -> None:
    large = bytes(range(256)) * 10_000
    pair.send(b"a", b"", large)
    assert pair.got() == [b"a", b"", large]
    assert pair.proxy.gate("data").num_messages == {Way.THERE: 1, Way.BACK: 0}


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("at", [0, 1, 64, 91])
def test_a_connection_is_cut_after_a_byte_and_dialled_again(pair: Pair, way: Way, with_reset: bool, at: int) -> None:
    pair.send(b"before")
    assert pair.got() == [b"before"]
    gate = pair.proxy.gate("data")
    cut = pair.proxy.cut_next(gate, Cut(way, at, with_reset))
    assert wait_until(lambda: cut.is_done or gate.num_connections > 2)
    pair.send(b"x" * 100)
    assert wait_until(lambda: cut.is_done)
    assert wait_until(lambda: gate.num_connections == 3)
    pair.send(b"after")
    while pair.got() != [b"after"]:
        pass  # what was sent before may be lost, and may be not
    assert gate.next_cut is None


def test_messages_are_doubled_and_kept_back(pair: Pair) -> None:
    gate = pair.proxy.gate("data")
    doubles, holds = Doubles(lambda message: message[0] == b"twice"), Holds(lambda message: message[0] == b"not now")
    pair.proxy.tamper(gate, Way.THERE, lambda message: [each for kept in holds(message) for each in doubles(kept)])
    for word in (b"not now", b"twice", b"once"):
        pair.send(word)
    assert [pair.got() for _ in range(3)] == [[b"twice"], [b"twice"], [b"once"]]
    assert (doubles.num_doubled, holds.kept) == (1, [(b"not now",)])
    assert pair.proxy.inject(gate, Way.THERE, holds.kept) == 1
    assert pair.got() == [b"not now"]
