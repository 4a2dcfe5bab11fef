"""The contract over NIXL with real agents, and what goes wrong between them."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import zmq

from protocol.errors import WireError
from protocol.frame import FrameHeader, pack_header, seal
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import RankEndpoint, WorkerAddress
from tests.bench.reading import figure
from tests.doubles.clock import VirtualClock
from tests.transfer.contract import DECODE, PREFILL, KvContract, Pair
from tests.transfer.memory import LAYOUT, HostMemory, expected_pool
from tests.transfer.zmq_network import ZmqNetwork
from transfer.backends.nixl.agent import Region
from transfer.backends.nixl.backend import PIN_S, SCHEME, NixlWire, nixl_receiver, nixl_sender, regions_of
from transfer.backends.nixl.source import pack_notice
from transfer.backends.zmq import ZmqArrivals, ZmqWire
from transfer.interfaces import SharedPages
from transfer.landing.frame_receiver import FrameReceiver
from transfer.landing.transfer import Delivered, FrameRejected, Rejection, TransferFailed
from transfer.offers import ANSWER, Answer
from transfer.plan import FRAME_BYTES
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import WINDOW_BYTES, Destination

pytestmark = pytest.mark.slow
LARGE = KvLayout.uniform(num_layers=2, num_kv_heads=8, head_dim=128, page_size=256, dtype="float32")  # 2 MiB a page


class NixlNetwork(ZmqNetwork):
    """Every KV frame is read out of the sender's pages."""

    def sender(self, memory: SharedPages, instance: int, window: int = WINDOW_BYTES) -> FrameSender:
        return nixl_sender(memory, instance, ZmqWire(self.context), window, gather_below=0)

    def receiver(self, memory: SharedPages) -> FrameReceiver:
        return nixl_receiver(memory, ZmqArrivals(memory, "127.0.0.1", self.context))


NETWORK = NixlNetwork


class TestNixl(KvContract):
    pass


def lands(pair: Pair, reservation: int, source: list[int], target: list[int]) -> bool:
    """Whether one more transfer of whole pages arrives."""
    num_tokens = pair.source.layout.page_size * len(source)
    before = bytes(pair.pool.pool)
    pair.send_all(pair.open(reservation, source, target, num_tokens), num_tokens)
    pair.until(lambda: reservation in [event.reservation for event in pair.seen(Delivered)])
    return bytes(pair.pool.pool) == expected_pool(before, pair.pool, target, pair.source, source, num_tokens)


def test_pages_are_in_use_until_decode_has_read_them(pair: Pair) -> None:
    transfer = pair.open(1, [1, 2], [3, 4], 8)
    pair.send_all(transfer, 8)
    pair.sender.cancel(transfer)
    assert pair.sender.is_reading(transfer)
    pair.until(lambda: not pair.sender.is_reading(transfer))
    assert pair.seen(Delivered)


def test_pages_are_given_back_when_decode_is_lost_or_silent_for_long(network: NixlNetwork) -> None:
    clock, source, pool = VirtualClock(), HostMemory(LAYOUT, 8, seed=1), HostMemory(LAYOUT, 8, seed=2)
    receiver = network.receiver(pool)
    sender = FrameSender(source, PREFILL, NixlWire(ZmqWire(network.context), source, clock))
    transfers = [
        Destination(WorkerAddress("d", DECODE + number, ranks=(RankEndpoint(receiver.address),)), 1, 0)
        for number in range(2)
    ]
    for transfer in transfers:
        sender.open(transfer, [1], 4)
        sender.layers_ready(transfer, (0,), 4)
        sender.cancel(transfer)
    assert all(map(sender.is_reading, transfers))
    sender.drop_peer(DECODE)
    assert [*map(sender.is_reading, transfers)] == [False, True]
    clock.advance(PIN_S)
    assert not sender.is_reading(transfers[1])
    sender.close()
    receiver.close()


@pytest.mark.broad
def test_more_than_the_ring_holds_comes_through_it(network: NixlNetwork) -> None:
    pair = Pair(network, LARGE)
    assert LARGE.num_layers * 10 * LARGE.layer(0).page_bytes > 2 * 4 * FRAME_BYTES
    assert lands(pair, 1, [*range(1, 11)], [*range(11, 1, -1)])
    assert lands(pair, 2, [5], [1])
    assert pair.rejections() == {}
    pair.close()


def test_a_strangers_notices_are_counted_and_harmless(pair: Pair, stranger: "zmq.Socket[Any]") -> None:
    header = pack_header(seal(FrameHeader(0, 99, 1, 0, 0, 0, 1, 4, 0), bytes(LAYOUT.layer(0).page_bytes)))
    notice = pack_notice(1, [Region(4096, LAYOUT.layer(0).page_bytes)])
    garbage = [[notice], [notice, b""], [notice[:9], header], [notice, header], [notice, header, b"more"]]
    for parts in garbage:
        stranger.send_multipart(parts)
    pair.until(lambda: len(pair.seen(FrameRejected)) == len(garbage))
    assert pair.rejections() == {Rejection.MALFORMED: len(garbage)}
    assert pair.pool.pool == pair.before and lands(pair, 1, [1, 2], [3, 4])


def test_what_is_not_exported_cannot_be_read_and_harms_no_other(pair: Pair, stranger: "zmq.Socket[Any]") -> None:
    (pages,) = regions_of(pair.source)
    pair.receiver.reserve(7, 0, PREFILL, [9], 4)
    header = pack_header(seal(FrameHeader(0, PREFILL, 7, 0, 0, 0, 1, 4, 0), bytes(LAYOUT.layer(0).page_bytes)))
    for address in (1, pages.address - 8, pages.address + pages.num_bytes - 8, 2**64 - 8):
        stranger.send_multipart([pack_notice(2**60, [Region(address, LAYOUT.layer(0).page_bytes)]), header])
    pair.until(lambda: len(pair.seen(FrameRejected)) == 4)
    assert pair.rejections() == {Rejection.SIZE: 4}
    assert [event.reservation for event in pair.seen(TransferFailed)] == [7]
    assert pair.pool.pool == pair.before and lands(pair, 1, [1, 2], [3, 4])


def test_a_prefill_worker_that_is_gone_fails_its_own_transfers_alone(network: NixlNetwork) -> None:
    pair = Pair(network)
    other = HostMemory(LAYOUT, 4, seed=9)
    gone = network.sender(other, PREFILL + 1)
    pair.receiver.answered(PREFILL + 1, gone.attach(DECODE, LAYOUT, b""))
    pair.receiver.reserve(5, 0, PREFILL + 1, [11], 4)
    transfer = Destination(pair.peer, 5, 0)
    gone.open(transfer, [1], 4)
    gone.layers_ready(transfer, (0,), 4)
    pair.until(lambda: not gone.is_reading(transfer))
    pair.settle()
    push = network.context.socket(zmq.PUSH)
    push.connect(pair.receiver.address.removeprefix(SCHEME))
    (pages,) = regions_of(other)
    gone.close()
    header = pack_header(seal(FrameHeader(1, PREFILL + 1, 5, 0, 1, 0, 1, 4, 0), bytes(LAYOUT.layer(0).page_bytes)))
    push.send_multipart([pack_notice(9, [Region(pages.address, LAYOUT.layer(0).page_bytes)]), header])
    pair.until(lambda: bool(pair.seen(TransferFailed)))
    assert pair.rejections() == {Rejection.SIZE: 1}
    assert lands(pair, 1, [1, 2], [3, 4])
    pair.receiver.lose(PREFILL + 1)
    pair.receiver.lose(PREFILL + 1)
    push.send_multipart([pack_notice(9, [Region(pages.address, LAYOUT.layer(0).page_bytes)]), header])
    pair.until(lambda: pair.rejections()[Rejection.MALFORMED] == 1)
    push.close(0)
    pair.close()


def test_what_is_no_export_is_refused(pair: Pair) -> None:
    with pytest.raises(WireError, match="transfer_backend is nixl, but prefill offers no memory"):
        pair.receiver.answered(5, b"")
    with pytest.raises(WireError, match="what prefill exports for NIXL cannot be read"):
        pair.receiver.answered(5, ANSWER.encode(Answer(export=b"hello")))
    assert lands(pair, 1, [1], [3])


@pytest.mark.broad
@pytest.mark.parametrize("transports", ["", "tcp"])
def test_between_two_processes(transports: str) -> None:
    """By one process reading another's memory, and by UCX over TCP, as between hosts without RDMA."""
    command = [sys.executable, "-m", "bench.transfer", "--only", "nixl", "--repeat", "1"]
    blocks = ["--blocks", "8192 tokens", "--blocks", "64 x 16 KiB"]
    environment = {**os.environ, **({"UCX_TLS": transports} if transports else {})}
    done = subprocess.run(
        [*command, *blocks], env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    [rows] = json.loads(done.stdout.splitlines()[-1])["tables"].values()
    assert [row["side"] for row in rows] == ["nixl"] * 2 and all(figure(row["GB/s"]) > 0 for row in rows)
