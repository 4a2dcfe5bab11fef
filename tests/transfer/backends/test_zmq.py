"""The contract over real sockets, and what strangers may send."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from protocol.errors import ConfigError
from protocol.frame import FrameHeader, pack_header
from protocol.messages_gateway import RankEndpoint, WorkerAddress
from runtime import bus
from tests.runtime.silent_peer import SilentPeer
from tests.transfer.contract import DECODE, KvContract, Pair
from tests.transfer.memory import LARGE, LAYOUT, HostMemory, expected_pool
from tests.transfer.zmq_network import ZmqNetwork
from transfer.backends.table import open_receiver, open_sender
from transfer.backends.zmq import ZmqArrivals, ZmqWire
from transfer.landing.transfer import Delivered, FirstFrame, FrameRejected
from transfer.plan import FRAME_BYTES
from transfer.sending.transfer import Destination

NETWORK = ZmqNetwork


class TestZmq(KvContract):
    pass


GARBAGE = [
    [b""],
    [b"hello"],
    [b"x" * 56],
    [b"", b"", b""],
    [b"\xff" * 56, b"y" * 1000],
    [pack_header(FrameHeader(0, 0, 0, 0, 0, 0, 0, 0, 0))],
    [b"z"] * 50,
]


def test_a_strangers_garbage_is_counted_and_harmless(pair: Pair, stranger: "zmq.Socket[Any]") -> None:
    transfer = pair.open(1, [1, 2], [3, 4], 6)
    for garbage in GARBAGE:
        stranger.send_multipart(garbage)
    pair.until(lambda: len(pair.seen(FrameRejected)) == len(GARBAGE))
    assert pair.pool.pool == pair.before
    pair.send_all(transfer, 6)
    pair.until(lambda: bool(pair.seen(Delivered)))
    assert pair.pool.pool == expected_pool(pair.before, pair.pool, [3, 4], pair.source, [1, 2], 6)
    assert pair.receiver.counters["rejected_malformed"] == len(GARBAGE) - 1


def test_what_speaks_another_protocol_or_sends_too_much_is_cut_off(pair: Pair, stranger: "zmq.Socket[Any]") -> None:
    host, port = pair.receiver.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        stranger.send(bytes(FRAME_BYTES + 1))
        pair.send_all(pair.open(1, [1, 2], [3, 4], 6), 6)
        pair.until(lambda: bool(pair.seen(Delivered)))
        pair.settle()
    assert pair.seen(FrameRejected) == []


@pytest.fixture
def mute_address() -> Iterator[str]:
    """Takes connections and never says a word, so that frames wait in the sender's queue."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_pages_stay_in_use_while_a_mute_peer_may_still_get_them(network: ZmqNetwork, mute_address: str) -> None:
    pair = Pair(network, LARGE)
    transfer = Destination(WorkerAddress("mute", 99, ranks=(RankEndpoint(mute_address),)), 1, 0)
    pair.sender.open(transfer, [1, 2], 128)
    pair.send_all(transfer, 128)
    pair.sender.cancel(transfer)
    pair.settle()
    assert pair.sender.is_reading(transfer)
    pair.sender.drop_peer(99)
    pair.until(lambda: not pair.sender.is_reading(transfer))
    pair.close()


def test_a_connection_whose_path_swallows_everything_is_told_as_broken(
    network: ZmqNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "BEAT_MS", 20)
    monkeypatch.setattr(bus, "SILENT_MS", 100)
    wire, look = ZmqWire(network.context), threading.Event()
    with SilentPeer(b"PULL") as peer:
        wire.connect(DECODE, peer.endpoint)
        is_told = any(wire.broken() == [DECODE] or look.wait(0.01) for _ in range(6_000))
        wire.close()
    assert is_told, "it is believed to be there"


def test_a_peer_that_vanishes_half_way_blocks_nobody(network: ZmqNetwork) -> None:
    pair = Pair(network, LARGE, window=2 * LARGE.layer(0).page_bytes)
    transfer = pair.open(1, [1, 2, 3], [4, 5, 6], 192)
    pair.sender.layers_ready(transfer, (0,), 64)
    pair.until(lambda: bool(pair.seen(FirstFrame)))
    pair.receiver.close()
    for final in (64, 128, 192):
        for layer in range(LARGE.num_layers):
            pair.sender.layers_ready(transfer, (layer,), final)
    pair.sender.finish(transfer, (5,))
    pair.sender.pump()
    assert pair.sender.counters["bytes_in_flight_now"] <= 2 * LARGE.layer(0).page_bytes
    pair.sender.drop_peer(DECODE)
    assert pair.sender.counters["frames_waiting_now"] == 0
    pair.close()


def test_both_ends_through_the_table_of_backends(network: ZmqNetwork) -> None:
    memory = HostMemory(LAYOUT, 2, seed=1)
    receiver = open_receiver("zmq", memory, "localhost", network.context)
    sender = open_sender("zmq", memory, 1, network.context)
    assert receiver.address.startswith("tcp://")
    assert not receiver.address.endswith(":0")
    receiver.close()
    sender.close()


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", ""])
def test_a_host_that_is_not_this_machine_is_named(network: ZmqNetwork, host: str) -> None:
    with pytest.raises(ConfigError, match=f"host: got '{host}'"):
        ZmqArrivals(HostMemory(LAYOUT, 2, seed=1), host, network.context)


def test_ipv6_where_there_is_one(network: ZmqNetwork) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    receiver = ZmqArrivals(HostMemory(LAYOUT, 2, seed=1), "::1", network.context)
    assert receiver.address.startswith("tcp://[::1]:")
    receiver.close()
