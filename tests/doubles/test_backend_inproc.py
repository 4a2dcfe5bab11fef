"""The contract without a socket, and what a network that loses, repeats, reorders and damages may do."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.frame import HEADER_BYTES
from testkit.device_on_host import HostCopies
from tests.doubles.backend_inproc import InprocNetwork, Packet
from tests.transfer.contract import DECODE, PREFILL, KvContract, Pair
from tests.transfer.memory import LAYOUT, expected_pool
from transfer.landing.transfer import CreditReturned, Delivered, FrameRejected, Rejection, TransferFailed
from transfer.plan import start_alignment
from transfer.sending.transfer import Destination


class TestInproc(KvContract):
    @pytest.fixture
    def network(self) -> InprocNetwork:
        return InprocNetwork()


NETWORKS: dict[str, Callable[[], InprocNetwork]] = {
    "frames": InprocNetwork,
    "in place": partial(InprocNetwork, in_place=True),
    "on device": lambda: InprocNetwork(copies=HostCopies()),
}
SIZES = st.sampled_from([1, 2, 3, 4, 8])


@pytest.mark.parametrize("way", NETWORKS)
@given(st.integers(0, 11), st.integers(0, 11), SIZES, SIZES)
@settings(max_examples=40)
def test_from_any_start_all_that_follows_arrives_and_nothing_else(
    way: str, num_tokens: int, wished: int, ours: int, theirs: int
) -> None:
    pair = Pair(NETWORKS[way](), replace(LAYOUT, page_size=ours), pool_layout=replace(LAYOUT, page_size=theirs))
    pair.transfers(
        1, num_tokens, min(wished, num_tokens) // start_alignment(ours, theirs) * start_alignment(ours, theirs)
    )
    assert len(pair.seen(Delivered)) == 1
    pair.close()


def test_frames_come_again_and_land_once() -> None:
    pair = Pair(InprocNetwork(lambda packet: [packet, packet.copy(), packet.copy().delayed(2)]))
    pair.send_all(pair.open(1, [1, 2], [3, 4], 6), 6)
    pair.settle()
    assert len(pair.seen(Delivered)) == 1
    assert sum(pair.rejections().values()) == 2 * (LAYOUT.num_layers + 1)
    assert set(pair.rejections()) == {Rejection.ALREADY_LANDED, Rejection.NOT_RECEIVING}
    assert pair.sender.counters["bytes_in_flight_now"] == 0
    assert pair.pool.pool == expected_pool(pair.before, pair.pool, [3, 4], pair.source, [1, 2], 6)


def test_a_late_copy_does_not_overwrite_what_decode_has_added_since() -> None:
    pair = Pair(InprocNetwork(lambda packet: [packet, packet.copy().delayed(1)]))
    pair.send_all(pair.open(1, [1, 2], [3, 4], 6), 6)
    pair.poll()
    assert len(pair.seen(Delivered)) == 1
    pair.pool.page_bytes_view(1, 4, 1)[:] = bytes(LAYOUT.layer(0).page_bytes)  # decode writes on
    decoded = bytes(pair.pool.pool)
    pair.settle()
    assert pair.rejections()[Rejection.NOT_RECEIVING] == LAYOUT.num_layers + 1
    assert pair.pool.pool == decoded


@pytest.mark.parametrize("offset", [0, 6, 20, 30, HEADER_BYTES - 1, HEADER_BYTES, -1])
@pytest.mark.parametrize("victim", range(LAYOUT.num_layers + 1))
def test_a_damaged_frame_is_never_delivered(offset: int, victim: int) -> None:
    count = iter(range(1000))
    pair = Pair(InprocNetwork(lambda packet: [packet.corrupted(offset) if next(count) == victim else packet]))
    pair.send_all(pair.open(1, [1, 2], [3, 4], 6), 6)
    pair.settle()
    assert pair.seen(Delivered) == []
    assert pair.seen(FrameRejected)
    if offset in (HEADER_BYTES, -1):  # the payload: whose it was is known
        assert [event.reservation for event in pair.seen(TransferFailed)] == [1]
        assert "checksum" in pair.seen(TransferFailed)[0].reason
        assert pair.sender.counters["bytes_in_flight_now"] == 0


def test_pages_that_change_while_they_are_being_read_are_noticed() -> None:
    pair = Pair(InprocNetwork())
    transfer = pair.open(1, [1, 2], [3, 4], 8)
    pair.send_all(transfer, 8)
    assert pair.sender.is_reading(transfer)
    pair.source.page_bytes_view(1, 2, 1)[:] = bytes(LAYOUT.layer(0).page_bytes)
    pair.settle()
    assert not pair.sender.is_reading(transfer)
    assert pair.seen(Delivered) == []
    assert [event.reservation for event in pair.seen(TransferFailed)] == [1]


def test_a_frame_of_scattered_pages_is_gathered_and_frees_its_pages_at_once() -> None:
    pair = Pair(InprocNetwork())
    transfer = pair.open(1, [5, 1], [3, 4], 8)
    pair.sender.layers_ready(transfer, (0,), 8)
    assert not pair.sender.is_reading(transfer)
    pair.sender.layers_ready(transfer, (1,), 8)
    assert pair.sender.counters["frames"] == 2


def test_frames_of_an_older_attempt_or_another_sender_are_refused() -> None:
    network = InprocNetwork()
    pair = Pair(network)
    pair.receiver.reserve(1, 1, PREFILL, [3], 4)
    old = Destination(pair.peer, 1, 0)
    pair.sender.open(old, [1], 4)
    pair.send_all(old, 4)
    imposter = network.sender(pair.source, PREFILL + 1)
    same = Destination(pair.peer, 1, 1)
    imposter.open(same, [1], 4)
    imposter.layers_ready(same, (0,), 4)
    pair.settle()
    assert pair.rejections() == {Rejection.WRONG_ATTEMPT: LAYOUT.num_layers + 1, Rejection.WRONG_SENDER: 1}
    assert pair.pool.pool == pair.before
    assert {event.sender_instance for event in pair.seen(CreditReturned)} == {PREFILL, PREFILL + 1}
    pair.sender.open(same, [1], 4)
    pair.send_all(same, 4)
    pair.settle()
    assert len(pair.seen(Delivered)) == 1


def make_fault(seed: int, drop: float, repeat: float, late: float, damage: float) -> tuple[list[int], InprocNetwork]:
    rng, lost = random.Random(seed), [0]

    def fault(packet: Packet) -> list[Packet]:
        if rng.random() < drop:
            lost[0] += 1
            return []
        made = [packet]
        if rng.random() < damage:
            lost[0] += 1
            made = [packet.corrupted(rng.randrange(sum(map(len, packet.parts))), 1 << rng.randrange(8))]
        if rng.random() < repeat:
            made.append(made[0].copy().delayed(rng.randrange(3)))
        return [each.delayed(rng.randrange(1, 4)) if rng.random() < late else each for each in made]

    return lost, InprocNetwork(fault)


RATE = st.sampled_from([0.0, 0.0, 0.05, 0.3])


@given(st.integers(0, 2**32), RATE, RATE, RATE, RATE, st.integers(1, 14), st.sampled_from([1, 300, 100_000]))
def test_delivered_implies_exact_bytes(
    seed: int, drop: float, repeat: float, late: float, damage: float, num_tokens: int, window: int
) -> None:
    rng = random.Random(seed)
    lost, network = make_fault(seed, drop, repeat, late, damage)
    pair = Pair(network, window=window)
    count = LAYOUT.num_pages(num_tokens)
    sources = [rng.sample(range(1, 12), count) for _ in range(2)]
    numbers = rng.sample(range(1, 12), 2 * count)
    targets = [numbers[:count], numbers[count:]]
    transfers = [pair.open(number, sources[number], targets[number], num_tokens) for number in (0, 1)]
    for final in [*sorted(rng.randint(0, num_tokens) for _ in range(2)), num_tokens]:
        for layer in range(LAYOUT.num_layers):
            for transfer in transfers:
                pair.sender.layers_ready(transfer, (layer,), final)
            if rng.random() < 0.3:
                pair.poll()
    for transfer in transfers:
        pair.sender.finish(transfer, (5,))
    released = rng.random() < 0.2
    if released:
        pair.receiver.release(0)
        pair.sender.cancel(transfers[0])
    pair.settle(polls=8)  # longer than any packet may be late

    ends = [event.reservation for event in pair.seen(Delivered)] + [e.reservation for e in pair.seen(TransferFailed)]
    assert len(ends) == len(set(ends))
    want, whole = bytes(pair.pool.pool), set(targets[0]) | set(targets[1])
    for event in pair.seen(Delivered):
        number = event.reservation
        want = expected_pool(want, pair.pool, targets[number], pair.source, sources[number], num_tokens)
    assert pair.pool.pool == want  # what was delivered is there
    for layer in range(LAYOUT.num_layers):  # and no page of anybody else was touched
        for page in set(range(12)) - whole:
            start = (layer * 12 + page) * LAYOUT.layer(0).page_bytes
            assert pair.pool.page_bytes_view(layer, page, 1) == pair.before[start : start + LAYOUT.layer(0).page_bytes]
    if not lost[0] and not released:
        assert sorted(event.reservation for event in pair.seen(Delivered)) == [0, 1]
        assert pair.sender.counters["bytes_in_flight_now"] == 0
    for transfer in transfers:
        pair.sender.cancel(transfer)
    pair.sender.drop_peer(DECODE)
    assert not any(map(pair.sender.is_reading, transfers))
