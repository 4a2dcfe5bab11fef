from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.frame import LAST_MESSAGE
from protocol.messages_gateway import RankEndpoint, WorkerAddress
from tests.transfer.memory import LAYOUT
from transfer.plan import KvFrame
from transfer.sending.transfer import CreditWindow, Destination, PeerQueue, SendTransfer

TARGET = Destination(WorkerAddress("d0", 9, ranks=(RankEndpoint("nowhere"),)), reservation=4, attempt=2)


def opened(num_tokens: int = 6) -> SendTransfer:
    return SendTransfer(TARGET, LAYOUT, range(LAYOUT.num_pages(num_tokens)), num_tokens)


def computed(num_tokens: int = 6) -> tuple[SendTransfer, list[KvFrame]]:
    transfer = opened(num_tokens)
    return transfer, [frame for layer in range(LAYOUT.num_layers) for frame in transfer.layer_ready(layer, num_tokens)]


def test_the_last_frame_announces_what_was_sent() -> None:
    transfer, frames = computed()
    for index, frame in enumerate(frames):
        header = transfer.header(frame, sender_instance=3)
        assert (header.sequence, header.reservation, header.attempt) == (index, 4, 2)
        transfer.sent(header._replace(checksum=2**63 + index))
    last = transfer.finish((11, 12), (), 0, b"hidden")
    said = LAST_MESSAGE.decode(transfer.last_payload(last))
    assert transfer.payload_bytes(last) == len(transfer.last_payload(last))
    assert (said.first_tokens, said.num_frames, said.hidden) == ((11, 12), len(frames), b"hidden")
    assert said.digest == sum(2**63 + index for index in range(len(frames))) % 2**64
    header = transfer.header(last, sender_instance=3)
    assert header.is_last
    transfer.sent(header)


def test_finish_needs_every_layer() -> None:
    transfer = opened()
    list(transfer.layer_ready(0, 6))
    with pytest.raises(AssertionError):
        transfer.finish((1,), (), 0)


def test_nothing_follows_the_last_frame() -> None:
    transfer, _ = computed()
    transfer.finish((1,), (), 0)
    with pytest.raises(AssertionError, match="illegal move SENDING -> SENDING"):
        transfer.finish((1,), (), 0)
    with pytest.raises(AssertionError, match="the last frame is queued"):
        transfer.layer_ready(0, 6)


def test_credit_bounds_what_is_in_flight() -> None:
    credit = CreditWindow(100)
    credit.take(1, 60)
    assert credit.fits(40)
    assert not credit.fits(41)
    credit.give_back(1, 60)
    assert credit.fits(500)  # larger than the window: alone
    credit.take(1, 500)
    assert not credit.fits(1)
    credit.give_back(1, 10_000)  # more than was lent is not believed
    assert credit.in_flight == 0
    credit.give_back(1, -5)
    credit.give_back(2, 5)
    assert credit.in_flight == 0


def test_credit_for_a_frame_writes_off_what_left_before_it() -> None:
    credit = CreditWindow(100)
    for reservation in (1, 2, 1, 3):
        credit.take(reservation, 25)
    assert not credit.fits(1)
    credit.give_back(2, 25)  # the first frame is lost, or its credit is
    assert credit.in_flight == 50
    credit.give_back(1, 25)  # late: of the first, or of the third
    assert credit.in_flight == 25
    credit.give_back(1, 25)
    assert credit.in_flight == 25
    credit.give_back(3, 25)
    assert credit.in_flight == 0 and credit.fits(500)


def test_lost_bytes_of_transfers_that_have_ended_block_nobody() -> None:
    credit = CreditWindow(100)
    credit.take(1, 60)
    credit.take(2, 40)
    assert not credit.fits(1)
    credit.end(1)
    assert not credit.fits(1)  # another's frame is in flight, and its credit may still come
    credit.end(2)
    assert credit.fits(500)
    credit.take(3, 10)
    assert not credit.fits(1)  # one frame at a time, until it is known how much has arrived
    credit.give_back(3, 10)
    assert credit.in_flight == 0 and credit.fits(100)


def test_what_never_leaves_gives_its_credit_back() -> None:
    """A frame may be older than what was written off, so fewer may be in flight than are withdrawn."""
    credit = CreditWindow(100)
    for reservation, num_bytes in ((1, 10), (1, 20), (2, 30), (1, 40)):
        credit.take(reservation, num_bytes)
    credit.withdraw(1, 2)
    assert credit.in_flight == 40 and credit.going_on == 2
    credit.give_back(1, 10)
    assert credit.in_flight == 30 and credit.going_on == 1
    credit.take(3, 5)
    credit.give_back(3, 5)  # writes off the frame of 2, which has not left yet
    credit.withdraw(2, 1)
    assert credit.in_flight == credit.going_on == 0 and credit.fits(500)


@pytest.mark.parametrize("num_moved", [0, 1, 3])
def test_a_transfer_that_ends_while_a_device_moves_its_frames_owes_what_has_left(num_moved: int) -> None:
    queue, moving = PeerQueue(window=10_000), Mock(done=True)
    transfer, frames = computed()
    for frame in frames:
        queue.push(transfer, frame)
    queue.begin(transfer, queue.pop_together(), moving)
    assert queue.credit.in_flight == 3 * transfer.payload_bytes(frames[0])
    for _ in range(num_moved):
        assert queue.moved() is not None
        queue.pop_moved()
    queue.drop(transfer)
    assert moving.wait.call_count == (num_moved < 3)
    assert queue.moved() is None and len(queue) == 0
    assert queue.credit.in_flight == num_moved * transfer.payload_bytes(frames[0])
    queue.credit.end(TARGET.reservation)
    assert queue.credit.going_on == 0


def test_dropping_a_transfer_leaves_the_others_in_order() -> None:
    queue = PeerQueue()
    one, frames = computed()
    two, _ = computed()
    for frame in frames:
        queue.push(one, frame)
        queue.push(two, frame)
    queue.drop(one)
    left = []
    while (head := queue.head()) is not None:
        left.append(head)
        queue.pop(0)
    assert left == [(two, frame) for frame in frames]
    assert len(queue) == 0


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_whatever_becomes_ready_when_the_oldest_leaves_first_and_each_in_its_order(
    events: list[tuple[int, bool]],
) -> None:
    queue, transfers = PeerQueue(), [opened() for _ in range(4)]
    waiting: list[tuple[int, int, KvFrame]] = []  # (age, number, frame)
    ages: dict[int, int] = {}
    for number, (which, leaves) in enumerate(events):
        frame = KvFrame(0, number, 1, 4)
        queue.push(transfers[which], frame)
        waiting.append((ages.setdefault(which, len(ages)), number, frame))
        if leaves:
            oldest = min(waiting)
            waiting.remove(oldest)
            owner = next(index for index, age in ages.items() if age == oldest[0])
            assert queue.head() == (transfers[owner], oldest[2])
            queue.pop(0)
        assert len(queue) == len(waiting)
