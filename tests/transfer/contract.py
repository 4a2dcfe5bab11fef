"""What every backend must do: one suite, inherited by the test class of each backend."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import lcm
from typing import Any, Protocol, TypeVar

import pytest
import zmq

from protocol.errors import WireError
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import RankEndpoint, WorkerAddress
from protocol.worker_facts import Stamp
from tests.transfer.memory import LARGE, LAYOUT, ODD_GROUPS, TWO_GROUPS, HostMemory, expected_pool
from transfer.landing.frame_receiver import FrameReceiver
from transfer.landing.transfer import (
    CreditReturned,
    Delivered,
    FirstFrame,
    FrameRejected,
    ReceiverEvent,
    Rejection,
    TransferFailed,
)
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import WINDOW_BYTES, Destination

PREFILL, DECODE, NUM_PAGES = 11, 22, 12
E = TypeVar("E")


class Network(Protocol):
    """Makes the two ends of one backend."""

    def sender(self, memory: HostMemory, instance: int, window: int = WINDOW_BYTES) -> FrameSender: ...

    def receiver(self, memory: HostMemory) -> FrameReceiver: ...


class Pair:
    """One prefill and one decode end, driven as two workers would: credit goes back, events are kept."""

    def __init__(
        self,
        network: Network,
        layout: KvLayout = LAYOUT,
        window: int = WINDOW_BYTES,
        pool_layout: KvLayout | None = None,
    ) -> None:
        self.source = HostMemory(layout, NUM_PAGES, seed=1)
        self.pool = HostMemory(pool_layout or layout, NUM_PAGES, seed=2)
        self.before = bytes(self.pool.pool)
        self.sender = network.sender(self.source, PREFILL, window)
        self.receiver = network.receiver(self.pool)
        self.peer = WorkerAddress("d0", DECODE, ranks=(RankEndpoint(self.receiver.address),))
        self.events: list[ReceiverEvent] = []
        self.in_place = False
        self.greet()

    def greet(self) -> None:
        """Decode greets prefill, with its memory if others may write there."""
        answer = self.sender.attach(DECODE, self.pool.layout, self.receiver.offer(PREFILL))
        self.in_place = self.receiver.answered(PREFILL, answer).in_place

    def open(
        self, reservation: int, source: list[int], target: list[int], num_tokens: int, start: int = 0
    ) -> Destination:
        layout, in_place = self.source.layout, self.in_place
        self.receiver.reserve(reservation, 0, PREFILL, target, num_tokens, layout, in_place, start)
        transfer = Destination(self.peer, reservation, 0, tuple(target) if in_place else None, start)
        self.sender.open(transfer, source, num_tokens)
        return transfer

    def send_all(self, transfer: Destination, num_tokens: int) -> None:
        for layer in range(self.source.layout.num_layers):
            self.sender.layers_ready(transfer, (layer,), num_tokens)
        self.sender.finish(transfer, (5,))

    def transfers(self, reservation: int, num_tokens: int, start: int) -> None:
        """A whole transfer: after it every byte of the pool is as it must be."""
        before, numbers = bytes(self.pool.pool), [3, 4, 9, 1, 2, 8, 7, 5, 10, 6, 11]
        source = numbers[: self.source.layout.num_pages(num_tokens)]
        target = numbers[::-1][: self.pool.layout.num_pages(num_tokens - start)]
        transfer = self.open(reservation, source, target, num_tokens, start)
        for final in (num_tokens // 2, num_tokens):
            for layer in range(self.source.layout.num_layers):
                self.sender.layers_ready(transfer, (layer,), final)
        self.sender.finish(transfer, (5,))
        self.until(lambda: reservation in [event.reservation for event in self.seen(Delivered)])
        self.sender.delivered(transfer)
        assert self.rejections() == {}
        assert self.pool.pool == expected_pool(before, self.pool, target, self.source, source, num_tokens, start)

    def poll(self) -> list[ReceiverEvent]:
        """One turn of the decode worker's loop, which may find nothing."""
        _wait(self.receiver)
        events = self.receiver.poll()
        for event in events:
            if isinstance(event, CreditReturned):
                self.sender.add_credit(DECODE, event.reservation, event.num_bytes)
        self.events += events
        return events

    def until(self, met: Callable[[], bool]) -> None:
        for _ in range(2400):  # two minutes of nothing
            if met():
                return
            self.poll()
        raise AssertionError(f"not reached; events were {self.events}")

    def settle(self, polls: int = 4) -> None:
        """Until nothing has come for so many polls."""
        quiet = 0
        while quiet < polls:
            quiet = 0 if self.poll() else quiet + 1

    def seen(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def rejections(self) -> Counter[Rejection]:
        return Counter(event.reason for event in self.seen(FrameRejected))

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def _wait(receiver: FrameReceiver) -> None:
    sockets = receiver.pollables()
    if sockets:
        zmq.select(sockets, [], [], timeout=0.05)


MakePair = Callable[..., Pair]


class KvContract:
    """Inherit, and give a fixture `network`."""

    @pytest.fixture
    def make_pair(self, network: Network) -> Iterator[MakePair]:
        made: list[Pair] = []

        def make(*args: Any, **options: Any) -> Pair:
            made.append(Pair(network, *args, **options))
            return made[-1]

        yield make
        for pair in made:
            pair.close()

    @pytest.fixture
    def pair(self, make_pair: MakePair) -> Pair:
        return make_pair()

    @pytest.mark.parametrize("num_tokens", [1, 3, 4, 10, 16])
    @pytest.mark.parametrize("chunk", [1, 5, 100])
    def test_kv_arrives_exactly_and_touches_nothing_else(self, pair: Pair, num_tokens: int, chunk: int) -> None:
        source, target = [3, 4, 9, 1], [10, 2, 3, 7]
        count = LAYOUT.num_pages(num_tokens)
        transfer = pair.open(1, source[:count], target[:count], num_tokens)
        for final in [*range(chunk, num_tokens, chunk), num_tokens]:
            for layer in range(LAYOUT.num_layers):
                pair.sender.layers_ready(transfer, (layer,), final)
        extras = (Stamp("prefilled", 1.0, "p0"),), 3, b"h" * 32_768
        pair.sender.finish(transfer, (5, 6), *extras)
        pair.until(lambda: bool(pair.seen(Delivered)))
        pair.sender.delivered(transfer)
        (delivered,) = pair.seen(Delivered)
        assert (delivered.reservation, delivered.last.first_tokens) == (1, (5, 6))
        assert (delivered.last.stamps, delivered.last.num_cached, delivered.last.hidden) == extras
        assert pair.seen(FirstFrame) == [FirstFrame(1)]
        assert pair.events.index(FirstFrame(1)) < pair.events.index(delivered)
        assert pair.rejections() == {}
        assert not pair.receiver.may_be_written(1)
        assert pair.pool.pool == expected_pool(pair.before, pair.pool, target, pair.source, source, num_tokens)
        pair.until(lambda: not pair.sender.is_reading(transfer))
        assert pair.sender.counters["bytes_in_flight_now"] == 0

    @pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4), (2, 3)])
    def test_only_what_begins_with_the_start_is_sent_and_written(
        self, make_pair: MakePair, sizes: tuple[int, int]
    ) -> None:
        layout, pool_layout = (replace(LAYOUT, page_size=size) for size in sizes)
        pair = make_pair(layout, pool_layout=pool_layout)
        step, num_tokens = lcm(*sizes), 2 * lcm(*sizes) + 1
        for start in (0, step, 2 * step):
            pair.transfers(start + 1, num_tokens, start)

    @pytest.mark.parametrize("num_tokens", [0, 8])
    def test_an_empty_tail_sends_its_last_message_only(self, pair: Pair, num_tokens: int) -> None:
        pair.transfers(1, num_tokens, start=num_tokens)
        assert pair.sender.counters["frames"] == 1

    @pytest.mark.parametrize("start", [1, 4, 12, 2**40])
    def test_a_start_that_cannot_be_is_refused(self, make_pair: MakePair, start: int) -> None:
        pair = make_pair(pool_layout=replace(LAYOUT, page_size=8))
        reason = f"start: got {start}, expected a token that begins a page of 4 and one of 8 tokens, and at most 9"
        with pytest.raises(WireError, match=reason):
            pair.sender.open(Destination(pair.peer, 1, 0, (1, 2) if pair.in_place else None, start), [1, 2, 3], 9)
        assert pair.sender.counters["transfers_now"] == 0

    def test_large_pages_travel_as_views_of_page_memory(self, make_pair: MakePair) -> None:
        pair = make_pair(LARGE)
        source, target = [8, 1, 2, 6], [4, 5, 9, 1]
        transfer = pair.open(1, source, target, 250)
        pair.send_all(transfer, 250)
        pair.until(lambda: bool(pair.seen(Delivered)))
        pair.until(lambda: not pair.sender.is_reading(transfer))
        assert pair.pool.pool == expected_pool(pair.before, pair.pool, target, pair.source, source, 250)

    @pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4), (3, 5), (1, 16), (16, 1)])
    @pytest.mark.parametrize("groups", [LAYOUT, TWO_GROUPS, ODD_GROUPS], ids=["one", "two", "odd"])
    def test_pages_of_every_size_and_layers_of_every_shape_arrive_exactly(
        self, make_pair: MakePair, sizes: tuple[int, int], groups: KvLayout
    ) -> None:
        """A draft's layers beside the target's: other heads, another head size, pages of another size in bytes."""
        layout, pool_layout = (replace(groups, page_size=size) for size in sizes)
        pair = make_pair(layout, pool_layout=pool_layout)
        for reservation, num_tokens in enumerate((1, 7, 11)):
            pair.transfers(reservation, num_tokens, start=0)

    def test_a_page_is_being_read_until_the_peer_has_taken_or_lost_it(
        self, network: Network, make_pair: MakePair
    ) -> None:
        pair = make_pair(LARGE)
        transfer = Destination(WorkerAddress("gone", 99, ranks=(RankEndpoint(closed_address(network)),)), 1, 0)
        pair.sender.open(transfer, [1, 2], 128)
        pair.send_all(transfer, 128)
        pair.sender.cancel(transfer)
        pair.sender.drop_peer(99)
        pair.until(lambda: not pair.sender.is_reading(transfer))
        assert pair.sender.counters["transfers_now"] == 0
        assert pair.sender.counters["transfers_cancelled"] == 1

    def test_two_transfers_to_one_peer_do_not_mix(self, pair: Pair) -> None:
        one = pair.open(1, [1, 2], [3, 4], 7)
        two = pair.open(2, [5], [6], 2)
        for layer in range(LAYOUT.num_layers):
            pair.sender.layers_ready(one, (layer,), 7)
            pair.sender.layers_ready(two, (layer,), 2)
        pair.sender.finish(two, (2,))
        pair.sender.finish(one, (1,))
        pair.until(lambda: len(pair.seen(Delivered)) == 2)
        tokens = {event.reservation: event.last.first_tokens for event in pair.seen(Delivered)}
        assert tokens == {1: (1,), 2: (2,)}
        want = expected_pool(pair.before, pair.pool, [3, 4], pair.source, [1, 2], 7)
        assert pair.pool.pool == expected_pool(want, pair.pool, [6], pair.source, [5], 2)

    def test_released_pages_are_not_written_and_credit_still_returns(self, pair: Pair) -> None:
        transfer = pair.open(1, [1, 2, 3], [4, 6, 8], 12)
        pair.sender.layers_ready(transfer, (0,), 12)
        pair.until(lambda: bool(pair.seen(FirstFrame)))
        pair.receiver.release(1)
        pair.receiver.release(1)
        landed = bytes(pair.pool.pool)
        for layer in (1, 2):
            pair.sender.layers_ready(transfer, (layer,), 12)
        pair.sender.finish(transfer, (5,))
        pair.until(lambda: pair.rejections()[Rejection.UNKNOWN_RESERVATION] == 3)
        assert pair.receiver.may_be_written(1) == (pair.pool.pool != landed) == pair.in_place
        assert pair.seen(Delivered) == []
        assert pair.receiver.counters["reservations_now"] == 0
        assert pair.receiver.counters["rejected_unknown_reservation"] == 3
        assert pair.sender.counters["bytes_in_flight_now"] == 0

    def test_credit_bounds_what_a_receiver_that_does_not_poll_can_have_in_flight(self, make_pair: MakePair) -> None:
        window = 5 * LAYOUT.layer(0).page_bytes
        pair = make_pair(window=window)
        transfer = pair.open(1, [1, 2], [3, 4], 8)
        other = pair.open(2, [5, 6], [7, 8], 8)
        pair.send_all(transfer, 8)
        pair.send_all(other, 8)
        for _ in range(3):
            pair.sender.pump()
            assert 0 < pair.sender.counters["bytes_in_flight_now"] <= window
        assert pair.sender.counters["frames_waiting_now"] == 6
        pair.until(lambda: len(pair.seen(Delivered)) == 2)
        assert pair.sender.counters["bytes_in_flight_now"] == 0
        assert sum(event.num_bytes for event in pair.seen(CreditReturned)) > 6 * LAYOUT.layer(0).page_bytes
        want = expected_pool(pair.before, pair.pool, [3, 4], pair.source, [1, 2], 8)
        assert pair.pool.pool == expected_pool(want, pair.pool, [7, 8], pair.source, [5, 6], 8)

    def test_a_frame_larger_than_the_window_goes_alone(self, make_pair: MakePair) -> None:
        pair = make_pair(window=1)
        pair.send_all(pair.open(1, [1], [3], 4), 4)
        assert pair.sender.counters["frames"] == 1
        pair.until(lambda: bool(pair.seen(Delivered)))
        assert pair.sender.counters["frames"] == LAYOUT.num_layers + 1

    def test_cancel_stops_what_is_queued(self, make_pair: MakePair) -> None:
        pair = make_pair(window=1)
        transfer = pair.open(1, [1], [3], 4)
        other = pair.open(2, [2], [4], 4)
        pair.send_all(transfer, 4)
        pair.send_all(other, 4)
        pair.sender.cancel(transfer)
        pair.sender.cancel(transfer)
        pair.until(lambda: bool(pair.seen(Delivered)))
        pair.settle()
        assert [event.reservation for event in pair.seen(Delivered)] == [2]
        assert pair.sender.counters["frames"] == 1 + LAYOUT.num_layers + 1
        assert pair.sender.counters["frames_waiting_now"] == 0
        assert pair.seen(TransferFailed) == []

    def test_calls_about_a_transfer_that_has_ended_do_nothing(self, pair: Pair) -> None:
        transfer = pair.open(1, [1], [3], 4)
        pair.sender.drop_peer(DECODE)
        pair.sender.drop_peer(DECODE)
        pair.send_all(transfer, 4)
        pair.sender.delivered(transfer)
        pair.sender.cancel(transfer)
        pair.sender.add_credit(DECODE, 1, 100)
        pair.sender.pump()
        pair.settle()
        assert pair.events == []
        assert not pair.sender.is_reading(transfer)
        assert pair.sender.counters["transfers_cancelled"] == 1
        assert "frames" not in pair.sender.counters
        assert pair.pool.pool == pair.before

    def test_an_acknowledgement_before_the_last_frame_is_a_failure(self, make_pair: MakePair) -> None:
        pair = make_pair(window=1)
        computing, queued = pair.open(1, [1], [3], 4), pair.open(2, [2], [4], 4)
        pair.sender.layers_ready(computing, (0,), 4)
        pair.send_all(queued, 4)  # the last frame waits for credit
        for transfer in (computing, queued):
            pair.sender.delivered(transfer)
        assert pair.sender.counters["transfers_failed"] == 2
        assert "transfers_delivered" not in pair.sender.counters

    def test_a_dropped_peer_can_be_met_again(self, pair: Pair) -> None:
        pair.send_all(pair.open(1, [1], [3], 4), 4)
        pair.sender.drop_peer(DECODE)
        pair.settle()
        pair.receiver.release(1)
        pair.greet()
        pair.send_all(pair.open(2, [2], [4], 4), 4)
        pair.until(lambda: 2 in [event.reservation for event in pair.seen(Delivered)])
        assert pair.sender.counters["transfers_now"] == 1

    def test_a_vanished_peer_blocks_nobody(self, network: Network, make_pair: MakePair) -> None:
        pair = make_pair()
        gone = WorkerAddress("gone", 99, ranks=(RankEndpoint(closed_address(network)),))
        lost = [Destination(gone, number, 0) for number in range(3)]
        for target in lost:
            pair.sender.open(target, [1, 2], 8)
            pair.send_all(target, 8)
        pair.send_all(pair.open(7, [1], [3], 4), 4)
        pair.until(lambda: bool(pair.seen(Delivered)))
        pair.sender.drop_peer(99)
        pair.until(lambda: not any(map(pair.sender.is_reading, lost)))
        assert pair.sender.counters["transfers_cancelled"] == 3

    def test_the_same_transfer_twice_and_a_wrong_address_are_refused(self, pair: Pair) -> None:
        transfer = pair.open(1, [1], [3], 4)
        with pytest.raises(WireError, match="reservation 1 attempt 0"):
            pair.sender.open(transfer, [1], 4)
        for address in ("", "tcp://", "tcp://127.0.0.1:notaport", "nowhere"):
            with pytest.raises(WireError, match="data address"):
                pair.sender.open(Destination(WorkerAddress("x", 5, ranks=(RankEndpoint(address),)), 1, 0), [1], 4)
        pair.send_all(transfer, 4)
        pair.until(lambda: bool(pair.seen(Delivered)))
        assert pair.sender.counters["transfers_now"] == 1

    def test_a_poll_lands_a_bounded_amount(self, pair: Pair) -> None:
        pair.send_all(pair.open(1, [1], [3], 4), 4)
        landed: list[Any] = []
        for _ in range(2400):
            _wait(pair.receiver)
            events = pair.receiver.poll(max_bytes=1)
            assert sum(isinstance(event, CreditReturned) for event in events) <= 1
            landed += events
            if any(isinstance(event, Delivered) for event in events):
                break
        assert sum(isinstance(event, CreditReturned) for event in landed) == LAYOUT.num_layers + 1

    def test_closing_twice_leaves_nothing(self, pair: Pair) -> None:
        transfer = pair.open(1, [1, 2], [3, 4], 8)
        pair.send_all(transfer, 8)
        pair.close()
        pair.close()
        assert pair.sender.counters["transfers_now"] == 0
        assert pair.receiver.counters["reservations_now"] == 0


def closed_address(network: Network) -> str:
    """Where nobody listens any more."""
    receiver = network.receiver(HostMemory(LAYOUT, 2, seed=3))
    receiver.close()
    return receiver.address
