"""The proxy itself, between two sockets of ZMQ."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import zmq

from protocol.frame import FrameHeader, pack_header, seal, unpack_header
from tests.faults.deployment import wait_until
from tests.proxy.faults import Doubles, Flips, Holds
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
        assert self.pull.poll(120_000)
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


def frame(sender: int, sequence: int) -> tuple[bytes, bytes]:
    header = FrameHeader(0, sender, 1, 0, sequence, 0, 1, 4, 0)
    return pack_header(seal(header, b"KV")), b"KV"


def test_messages_are_doubled_and_kept_back(pair: Pair) -> None:
    gate = pair.proxy.gate("data")
    doubles, holds = Doubles(lambda message: message[0] == b"twice"), Holds(pass_first=1)
    pair.proxy.tamper(gate, Way.THERE, lambda message: [double for kept in holds(message) for double in doubles(kept)])
    frames = [frame(7, 0), frame(7, 1), frame(8, 0), (b"twice",), (b"once",)]
    for sent in frames:
        pair.send(*sent)
    assert [tuple(pair.got()) for _ in range(5)] == [frames[0], frames[2], frames[3], frames[3], frames[4]]
    assert (doubles.num_doubled, holds.kept, holds.sender) == (1, [frames[1]], 7)
    assert pair.proxy.inject(gate, Way.THERE, holds.kept) == 1
    assert tuple(pair.got()) == frames[1]
    holds.lets_go = True
    pair.send(*frame(7, 2))
    assert tuple(pair.got()) == frame(7, 2) and holds.num_late == 1


def test_a_bit_is_turned_where_it_is_said_to_be() -> None:
    message = frame(7, 0)
    flips = Flips(random.Random(1), 1.0, header=range(8, 16), share=1.0)
    (turned,) = flips(message)
    assert unpack_header(turned[0]).sender_instance.bit_count() in (2, 4) and turned[1] == message[1]
    (turned,) = Flips(random.Random(1), 1.0, share=0.0)(message)
    assert turned[0] == message[0] and sum(a != b for a, b in zip(turned[1], b"KV", strict=True)) == 1
    assert list(Flips(random.Random(1), 0.0)(message)) == [message]
    assert flips.kinds == {"header": 1}
