"""The contract with pages that only a device reaches: copies that run when a test says so, and who may write for how
long."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from protocol.errors import WireError
from protocol.frame import Check, FrameHeader, pack_header, seal, unpack_header
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import WorkerAddress
from runtime.shared_memory import is_taken
from testkit.device_on_host import HostCopies, LocalIpc
from tests.doubles.backend_inproc import InprocNetwork, Packet
from tests.doubles.held_copies import HeldCopies
from tests.processes import num_open_files
from tests.transfer.contract import DECODE, PREFILL, KvContract, Pair
from tests.transfer.memory import LAYOUT, HostMemory, expected_pool
from transfer.in_place.device_pools import AtDevice, DevicePool
from transfer.in_place.pools import IN_PLACE, ON_DEVICE, MappedPool, Pools
from transfer.in_place.writers import PoolOwner, SeatFile
from transfer.interfaces import Part
from transfer.landing.transfer import Delivered, Rejection, TransferFailed
from transfer.offers import DeviceHandle, PoolOffer
from transfer.plan import FRAME_BYTES
from transfer.sending.transfer import Destination


@pytest.fixture
def network() -> InprocNetwork:
    return InprocNetwork(copies=HostCopies())


class TestDevice(KvContract):
    def test_a_poll_lands_a_bounded_amount(self, pair: Pair) -> None:
        """The host touches no byte, so only the number of frames bounds a poll."""
        pair.send_all(pair.open(1, [1], [3], 4), 4)
        events = pair.receiver.poll(max_bytes=1)
        assert pair.in_place and [type(event) for event in events if isinstance(event, Delivered)] == [Delivered]


@pytest.fixture
def device() -> HeldCopies:
    return HeldCopies()


@pytest.fixture
def pair(device: HeldCopies) -> Iterator[Pair]:
    made = Pair(InprocNetwork(copies=device))
    yield made
    made.close()


def run_all(pair: Pair, device: HeldCopies) -> None:
    is_idle = False
    while device.queue or not is_idle:
        if device.queue:
            device.step()
        pair.sender.pump()
        is_idle = not pair.poll()


@pytest.mark.parametrize("in_place", [True, False])
def test_kv_that_a_device_writes_is_not_read_from_host_memory(pair: Pair, in_place: bool) -> None:
    pages = () if in_place else None  # no page may be left to write
    assert pair.sender.reads_host(Destination(pair.peer, 1, 0, pages)) == (not in_place)
    assert pair.sender.reads_host(Destination(WorkerAddress("other", DECODE + 1), 1, 0, pages))


def test_a_header_leaves_when_its_copy_is_done_and_is_believed_when_it_was_read(pair: Pair, device: HeldCopies) -> None:
    pair.send_all(pair.open(1, [1, 2], [3, 4], 6), 6)
    assert pair.in_place and len(device.queue) == LAYOUT.num_layers and pair.sender.is_moving
    pair.sender.pump()
    assert pair.poll() == [] and pair.pool.pool == pair.before
    for _ in range(LAYOUT.num_layers):
        device.step()
    pair.sender.pump()
    assert not pair.sender.is_moving
    assert pair.pool.pool == expected_pool(pair.before, pair.pool, [3, 4], pair.source, [1, 2], 6)
    pair.settle()
    assert pair.receiver.is_checking and not pair.seen(Delivered)
    run_all(pair, device)
    assert [event.on_device for event in pair.seen(Delivered)] == [True]
    assert not pair.receiver.is_checking and pair.rejections() == {}


def test_the_last_frame_waits_for_copies(pair: Pair, device: HeldCopies) -> None:
    sent: list[FrameHeader] = []

    def note(packet: Packet) -> list[Packet]:
        sent.append(unpack_header(packet.parts[0]))
        return [packet]

    other = Pair(InprocNetwork(note, copies=device))
    other.send_all(other.open(1, [1], [3], 4), 4)
    other.send_all(other.open(2, [2], [5], 4), 4)
    assert sent == []
    while device.queue and not any(header.is_last for header in sent):
        device.step()
        other.sender.pump()
    assert [(header.reservation, header.layer) for header in sent[:3]] == [(1, 0), (1, 1), (1, 2)]
    assert all((header.check == Check.DEVICE_SUM) != header.is_last for header in sent)
    run_all(other, device)
    assert {event.reservation for event in other.seen(Delivered)} == {1, 2}
    other.close()


def test_an_end_waits_for_the_copies_that_have_begun(pair: Pair, device: HeldCopies) -> None:
    """Whoever hears that a transfer has stopped gives its pages to others."""
    ended, goes_on = pair.open(1, [1], [3], 4), pair.open(2, [2], [5], 4)
    for transfer in (ended, goes_on):
        pair.sender.layers_ready(transfer, (0,), 4)
    device.step()
    pair.sender.layers_ready(ended, (1,), 4)
    pair.sender.cancel(ended)
    assert not device.queue and device.num_finished == 1
    after = bytes(pair.pool.pool)
    pair.settle()
    assert pair.pool.pool == after
    pair.receiver.stopped(1, PREFILL)
    assert not pair.receiver.may_be_written(1) and pair.receiver.may_be_written(2)
    for layer in (1, 2):
        pair.sender.layers_ready(goes_on, (layer,), 4)
    pair.sender.finish(goes_on, (5,))
    run_all(pair, device)
    assert [event.reservation for event in pair.seen(Delivered)] == [2]


def test_a_seat_is_let_go_after_the_last_copy(pair: Pair, device: HeldCopies) -> None:
    pair.sender.layers_ready(pair.open(1, [1], [3], 4), (0,), 4)
    assert pair.receiver.may_be_written(1)
    pair.sender.drop_peer(DECODE)
    assert not device.queue and not pair.receiver.may_be_written(1)


def test_of_a_transfer_that_is_over_no_sum_is_asked(pair: Pair, device: HeldCopies) -> None:
    transfer = pair.open(1, [1], [3], 4)
    pair.sender.layers_ready(transfer, (0,), 4)
    device.step()
    pair.sender.pump()
    pair.settle()
    assert pair.receiver.is_checking
    pair.receiver.release(1)
    events = len(pair.events)
    run_all(pair, device)
    assert not pair.receiver.is_checking and len(pair.events) == events


@pytest.mark.parametrize("layer", range(LAYOUT.num_layers))
def test_a_bit_that_turns_on_the_device_fails_the_transfer(pair: Pair, device: HeldCopies, layer: int) -> None:
    pair.send_all(pair.open(1, [1], [3], 3), 3)
    for _ in range(LAYOUT.num_layers):
        device.step()
    pair.pool.token(layer, [3], 1, 1)[5] ^= 1
    run_all(pair, device)
    pair.settle()
    assert pair.rejections()[Rejection.CHECKSUM] == 1
    assert pair.seen(TransferFailed) and not pair.seen(Delivered) and pair.receiver.may_be_written(1)


@pytest.mark.parametrize("on_device", [True, False])
def test_checksums_of_the_other_kind_are_refused_by_name(on_device: bool) -> None:
    def mix_up(packet: Packet) -> list[Packet]:
        header = unpack_header(packet.parts[0])
        if header.is_last:
            return [packet]
        payload = [bytes(part) for part in packet.parts[1:]]
        other = seal(header._replace(check=1 - header.check), *payload) if payload else header._replace(check=0)
        return [Packet((memoryview(pack_header(other)), *packet.parts[1:]))]

    pair = Pair(InprocNetwork(mix_up, copies=HostCopies() if on_device else None))
    pair.sender.layers_ready(pair.open(1, [1], [3], 4), (0,), 4)
    pair.until(lambda: bool(pair.seen(TransferFailed)))
    assert pair.rejections() == {Rejection.CHECK_KIND: 1}
    pair.close()


def test_a_frame_with_a_payload_is_refused(device: HeldCopies) -> None:
    part: list[Part] = [b"x" * 256]

    def with_payload(packet: Packet) -> list[Packet]:
        return [Packet((packet.parts[0], memoryview(part[0])))]

    pair = Pair(InprocNetwork(with_payload, copies=device))
    pair.sender.layers_ready(pair.open(1, [1], [3], 4), (0,), 4)
    device.step()
    pair.sender.pump()
    pair.until(lambda: bool(pair.seen(TransferFailed)))
    assert not device.queue
    pair.close()


def test_where_pages_are_not_told_frames_go_as_ever() -> None:
    """Decode has not admitted the writer: what was mapped does not matter."""
    sizes: list[int] = []

    def note(packet: Packet) -> list[Packet]:
        sizes.append(sum(map(len, packet.parts[1:])))
        return [packet]

    layout = KvLayout.uniform(num_layers=1, num_kv_heads=8, head_dim=128, page_size=64, dtype="float32")
    pair = Pair(InprocNetwork(note, copies=HostCopies()), layout)
    pair.in_place = False
    pair.send_all(pair.open(1, list(range(1, 9)), list(range(3, 11)), 512), 512)
    pair.until(lambda: bool(pair.seen(Delivered)))
    assert sum(sizes[:-1]) == 8 * layout.layer(0).page_bytes and max(sizes) <= FRAME_BYTES
    assert [event.on_device for event in pair.seen(Delivered)] == [False]
    pair.close()


# ---- who may map what ----


def offers(memory: HostMemory, ipc: LocalIpc) -> tuple[PoolOwner, PoolOffer]:
    owner = PoolOwner(SeatFile(memory.num_pages), ipc.export(memory.device_bytes))
    return owner, owner.offer()


def test_what_cannot_be_mapped_is_refused_by_name_and_leaves_nothing_open() -> None:
    memory, source, ipc = HostMemory(LAYOUT, 4, seed=1), HostMemory(LAYOUT, 3, seed=2), LocalIpc()
    owner, offer = offers(memory, ipc)
    pools = Pools({ON_DEVICE: partial(DevicePool, AtDevice(source, HostCopies(), ipc))}, "cuda_ipc")
    assert offer.device is not None
    other = DeviceHandle("f" * 128, 0, offer.device.num_bytes)
    for wrong, reason in [
        (None, "decode offers no KV memory to write in"),
        (replace(offer, device=None), "decode offers no device memory"),
        (replace(offer, num_pages=5), "device memory has 3072 bytes, expected 3840"),
        (replace(offer, host="elsewhere"), "on another host, or in another container"),
        (replace(offer, pid=2**22 + 1), "memory cannot be opened"),
        (replace(offer, device=other), "nobody exports such memory"),
    ]:
        num_files = num_open_files()
        with pytest.raises(WireError, match=f"transfer_backend is cuda_ipc, but .*{reason}"):
            pools.attach(1, LAYOUT, wrong)
        assert num_open_files() == num_files and not owner.is_taken(offer.seat)
    assert pools.attach(1, LAYOUT, offer) and owner.is_taken(offer.seat)
    with pytest.raises(WireError, match="seat cannot be taken"):
        pools.attach(2, LAYOUT, offer)
    assert isinstance(pools.get(1), DevicePool) and pools.get(2) is None
    pools.close()
    pools.close()
    assert not owner.is_taken(offer.seat)


def test_where_the_device_cannot_be_mapped_host_memory_is() -> None:
    memory, ipc = HostMemory(LAYOUT, 4, seed=1), LocalIpc()
    owner = PoolOwner(memory, ipc.export(memory.device_bytes))
    ours = AtDevice(HostMemory(LAYOUT, 3, seed=2), HostCopies(), LocalIpc())
    pools = Pools({ON_DEVICE: partial(DevicePool, ours), IN_PLACE: MappedPool})
    offer = owner.offer()
    assert pools.attach(1, LAYOUT, offer)  # of another LocalIpc: as if no device could reach it
    assert isinstance(pools.get(1), MappedPool) and is_taken(memory.shared_fd, offer.seat)
    pools.drop(1)
    assert not pools.attach(1, LAYOUT, None)
    assert not owner.is_taken(offer.seat)


def test_layers_that_are_ready_together_are_one_call_at_both_ends(pair: Pair, device: HeldCopies) -> None:
    """A call costs the host some 100 us. Layers of another chunk, or of another transfer, are calls of their own."""
    one, two = pair.open(1, [1, 2], [3, 4], 6), pair.open(2, [5], [6], 4)
    pair.sender.layers_ready(one, range(LAYOUT.num_layers), 4)
    pair.sender.layers_ready(one, range(LAYOUT.num_layers), 6)
    pair.sender.layers_ready(two, (0, 2), 4)
    pair.sender.layers_ready(two, (1,), 4)
    assert len(device.queue) == 2 + 3
    pair.sender.finish(one, (5,))
    pair.sender.finish(two, (6,))
    while device.queue:
        device.step()
    pair.sender.pump()
    pair.settle()
    assert len(device.queue) == 2 + 3 and pair.receiver.is_checking
    run_all(pair, device)
    assert sorted(event.reservation for event in pair.seen(Delivered)) == [1, 2] and pair.rejections() == {}
    assert pair.pool.pool == expected_pool(
        expected_pool(pair.before, pair.pool, [3, 4], pair.source, [1, 2], 6), pair.pool, [6], pair.source, [5], 4
    )


def test_layers_that_are_ready_together_leave_as_credit_allows(device: HeldCopies) -> None:
    pair = Pair(InprocNetwork(copies=device), window=1)
    pair.sender.layers_ready(pair.open(1, [1], [3], 4), range(LAYOUT.num_layers), 4)
    assert len(device.queue) == 1
    pair.close()
