"""The contract with pages written in place over real sockets, and who may write where, for how long."""

import os
from dataclasses import replace

import pytest

from protocol.errors import WireError
from protocol.messages_gateway import RankEndpoint, WorkerAddress
from runtime.shared_memory import SharedMemory, is_taken, take_seat
from tests.processes import num_open_files
from tests.transfer.contract import DECODE, PREFILL, KvContract, Pair
from tests.transfer.memory import LAYOUT, HostMemory, expected_pool
from tests.transfer.zmq_network import ZmqNetwork
from transfer.backends.zmq import ZmqArrivals, ZmqWire
from transfer.in_place.pools import IN_PLACE, MappedPool, Pools
from transfer.in_place.writers import PoolOwner, Writers
from transfer.interfaces import PageMemory, SharedPages
from transfer.landing.frame_receiver import FrameReceiver
from transfer.landing.transfer import Delivered, Rejection, TransferFailed
from transfer.offers import ANSWER, OFFER, Answer, PoolOffer
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import WINDOW_BYTES, Destination


class ShmNetwork(ZmqNetwork):
    """Headers over sockets, KV through memory."""

    def sender(self, memory: PageMemory, instance: int, window: int = WINDOW_BYTES) -> FrameSender:
        return FrameSender(memory, instance, ZmqWire(self.context), window, Pools({IN_PLACE: MappedPool}, "shm"))

    def receiver(self, memory: SharedPages) -> FrameReceiver:
        writers = Writers(PoolOwner(memory), required="shm")
        return FrameReceiver(memory, ZmqArrivals(memory, "127.0.0.1", self.context), writers)


NETWORK = ShmNetwork


class TestShm(KvContract):
    pass


def test_pages_are_written_before_the_receiver_looks(pair: Pair) -> None:
    pair.send_all(pair.open(1, [1, 2], [3, 4], 6), 6)
    assert pair.in_place and pair.events == []
    assert pair.pool.pool == expected_pool(pair.before, pair.pool, [3, 4], pair.source, [1, 2], 6)
    pair.until(lambda: bool(pair.seen(Delivered)))


@pytest.mark.parametrize("slot", range(3))
@pytest.mark.parametrize("half", [0, 1])
def test_a_bit_that_turns_in_a_page_fails_the_transfer(pair: Pair, slot: int, half: int) -> None:
    pair.send_all(pair.open(1, [1], [3], 3), 3)
    pair.pool.token(2, [3], slot, half)[5] ^= 1
    pair.until(lambda: pair.rejections() == {Rejection.CHECKSUM: 1, Rejection.NOT_RECEIVING: 1})
    assert pair.seen(TransferFailed) and pair.receiver.may_be_written(1)


def test_what_lies_beyond_the_prompt_does_not_matter(pair: Pair) -> None:
    pair.send_all(pair.open(1, [1], [3], 3), 3)
    pair.pool.token(2, [3], 3, 0)[5] ^= 1
    pair.until(lambda: bool(pair.seen(Delivered)))
    assert pair.rejections() == {}


def test_released_pages_may_be_written_until_that_writer_says_that_it_stopped(pair: Pair) -> None:
    transfer = pair.open(1, [1, 2], [3, 4], 8)
    pair.open(2, [5], [6], 4)
    pair.sender.layers_ready(transfer, (0,), 8)
    pair.receiver.release(1)
    pair.settle()
    assert pair.receiver.may_be_written(1)
    pair.receiver.stopped(1, PREFILL + 1)
    assert pair.receiver.may_be_written(1)
    pair.sender.cancel(transfer)
    landed = bytes(pair.pool.pool)
    pair.receiver.stopped(1, PREFILL)
    assert not pair.receiver.may_be_written(1)
    assert pair.receiver.may_be_written(2)
    pair.sender.layers_ready(transfer, (1,), 8)
    assert pair.pool.pool == landed


def test_a_writer_that_has_let_go_writes_no_more(pair: Pair) -> None:
    transfer = pair.open(1, [1], [3], 4)
    pair.sender.layers_ready(transfer, (0,), 4)
    assert pair.receiver.may_be_written(1)
    pair.sender.drop_peer(DECODE)
    assert not pair.receiver.may_be_written(1)
    landed = bytes(pair.pool.pool)
    pair.send_all(transfer, 4)
    assert pair.pool.pool == landed


def test_who_closes_lets_go_of_memory_in_which_nothing_was_written(pair: Pair) -> None:
    assert pair.in_place and is_taken(pair.pool.shared_fd, 1)
    pair.sender.close()
    assert not is_taken(pair.pool.shared_fd, 1)


def test_a_greeting_anew_ends_what_was_written_after_the_one_before(pair: Pair) -> None:
    pair.open(1, [1], [3], 4)
    pair.greet()
    assert not pair.receiver.may_be_written(1)
    assert pair.in_place
    pair.send_all(pair.open(2, [2], [4], 4), 4)
    pair.until(lambda: bool(pair.seen(Delivered)))


def test_an_answer_to_an_older_greeting_admits_nobody(pair: Pair) -> None:
    pair.receiver.offer(PREFILL)
    with pytest.raises(WireError, match="transfer_backend is shm, but prefill has not mapped"):
        pair.receiver.answered(PREFILL, ANSWER.encode(Answer(in_place=True)))
    with pytest.raises(WireError, match="transfer_backend is shm"):
        pair.receiver.answered(PREFILL + 1, ANSWER.encode(Answer(in_place=True)))


@pytest.mark.parametrize("garbage", [b"x", OFFER.encode(PoolOffer("here", 1, 3, 10, 1))[:-1], bytes(300_000)])
def test_an_offer_or_an_answer_that_is_none_is_refused_in_a_sentence(pair: Pair, garbage: bytes) -> None:
    with pytest.raises(WireError, match="transfer offer: "):
        pair.sender.attach(DECODE, LAYOUT, garbage)
    with pytest.raises(WireError, match="answer to a transfer offer: "):
        pair.receiver.answered(PREFILL, garbage)


@pytest.mark.parametrize("pages", [[3], [3, 4, 5], [3, 3], [0, 3], [3, 12], [-1, 3]])
def test_pages_that_cannot_be_are_refused(pair: Pair, pages: list[int]) -> None:
    with pytest.raises(WireError, match="pages"):
        pair.sender.open(Destination(pair.peer, 1, 0, tuple(pages)), [1, 2], 8)
    assert pair.sender.counters["transfers_now"] == 0


def test_pages_of_memory_that_is_not_mapped_are_refused(pair: Pair) -> None:
    stranger = WorkerAddress("d9", 99, ranks=(RankEndpoint(pair.receiver.address),))
    with pytest.raises(WireError, match="the KV memory of d9 is not mapped"):
        pair.sender.open(Destination(stranger, 1, 0, (3,)), [1], 4)


def test_a_frame_with_a_payload_lands_nowhere(network: ShmNetwork, pair: Pair) -> None:
    """Where decode expects KV in place, what comes as a frame is refused."""
    pair.open(1, [1], [3], 4)
    other = FrameSender(pair.source, PREFILL, ZmqWire(network.context))
    transfer = Destination(pair.peer, 1, 0)
    other.open(transfer, [1], 4)
    other.layers_ready(transfer, (0,), 4)
    pair.until(lambda: bool(pair.seen(TransferFailed)))
    assert pair.pool.pool == pair.before
    other.close()


def offer_of(memory: HostMemory) -> PoolOffer:
    return PoolOwner(memory).offer()


def test_memory_that_cannot_be_mapped_is_refused_by_name() -> None:
    memory = HostMemory(LAYOUT, 2, seed=1)
    offer = offer_of(memory)
    read_end, write_end = os.pipe()
    for wrong, reason in [
        (replace(offer, host="elsewhere"), "on another host, or in another container"),
        (replace(offer, fd=read_end), "is not KV memory of Baton"),
        (replace(offer, fd=10_000), "cannot be opened"),
        (replace(offer, pid=2**22 + 1), "cannot be opened"),
        (
            replace(offer, num_pages=3),
            f"it has {2 * 3 * LAYOUT.layer(0).page_bytes} bytes, expected {3 * 3 * LAYOUT.layer(0).page_bytes}",
        ),
    ]:
        num_files = num_open_files()
        with pytest.raises(WireError, match=reason):
            MappedPool(LAYOUT, wrong)
        assert num_open_files() == num_files
    os.close(read_end)
    os.close(write_end)


def test_a_seat_that_is_taken_is_refused() -> None:
    memory = HostMemory(LAYOUT, 2, seed=1)
    offer = offer_of(memory)
    first = MappedPool(LAYOUT, offer)
    with pytest.raises(WireError, match="seat cannot be taken"):
        MappedPool(LAYOUT, offer)
    first.close()
    MappedPool(LAYOUT, offer).close()


def test_where_others_may_not_write_frames_do(network: ShmNetwork) -> None:
    pools, memory = Pools({IN_PLACE: MappedPool}), HostMemory(LAYOUT, 2, seed=1)
    offer = offer_of(memory)
    assert not pools.attach(1, LAYOUT, None)
    assert not pools.attach(1, LAYOUT, replace(offer, host="elsewhere"))
    assert pools.get(1) is None
    assert pools.attach(1, LAYOUT, offer)
    assert not pools.attach(1, LAYOUT, None)  # what was mapped before is let go
    assert pools.get(1) is None
    writers = Writers(PoolOwner(memory))
    writers.offer(5)
    assert not writers.admit(5, True) and not writers.admit(5, False) and not writers.admit(6, True)


def test_where_it_is_required_the_reason_is_given() -> None:
    with pytest.raises(WireError, match="transfer_backend is shm, but decode offers no KV memory to write in"):
        Pools({IN_PLACE: MappedPool}, "shm").attach(1, LAYOUT, None)


def test_the_descriptors_are_closed_with_the_memory() -> None:
    num_files = num_open_files()
    memory = SharedMemory(4096)
    take_seat(os.dup(memory.fd), 1)
    del memory
    assert num_open_files() == num_files + 1  # the dup


def test_pages_of_the_life_before_are_writable_until_their_writer_lets_go_whoever_greets_the_next_life() -> None:
    """A decode worker that returns lends the same memory. Its old reservation waits for the old seat alone."""
    memory = HostMemory(LAYOUT, 4, seed=1)
    before, after = Writers(PoolOwner(memory)), Writers(PoolOwner(memory))
    held = MappedPool(LAYOUT, before.offer(PREFILL))
    assert before.admit(PREFILL, True)
    before.began(1, PREFILL)

    again = MappedPool(LAYOUT, after.offer(PREFILL))
    assert after.admit(PREFILL, True)
    after.began(2, PREFILL)
    assert before.may_be_written(1) and after.may_be_written(2)
    held.close()
    assert not before.may_be_written(1) and after.may_be_written(2)
    again.close()
    assert not after.may_be_written(2)
