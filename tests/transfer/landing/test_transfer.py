from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest

from protocol.frame import LAST_LAYER, LAST_MESSAGE, FrameHeader, LastMessage
from tests.transfer.memory import LAYOUT, TWO_GROUPS
from transfer.landing.transfer import (
    Delivered,
    FirstFrame,
    FrameRejected,
    ReceiverEvent,
    ReceiveTransfer,
    Rejection,
    TransferFailed,
)
from transfer.plan import Copy
from transfer.states import TransferState

NUM_TOKENS, PAGES = 6, (5, 2)  # a full page and half of another
BLANK = FrameHeader(0, 77, 4, 1, 0, 0, 2, NUM_TOKENS, 2 * LAYOUT.layer(0).page_bytes)
FRAMES = [BLANK._replace(layer=layer, checksum=2**63 + layer) for layer in range(LAYOUT.num_layers)]
LAST_HEADER = BLANK._replace(layer=LAST_LAYER, num_pages=0, num_tokens=0, payload_bytes=30)
LAST = LastMessage((9,), LAYOUT.num_layers, sum(frame.checksum for frame in FRAMES) % 2**64)


def reserved() -> ReceiveTransfer:
    return ReceiveTransfer(LAYOUT, 1, 77, PAGES, NUM_TOKENS)


def take(transfer: ReceiveTransfer, header: FrameHeader, last: LastMessage = LAST) -> Copy | Rejection | None:
    """Takes an undamaged frame. Returns its copy, or why it is refused, or None for an accepted last frame."""
    taken = transfer.take(header, [memoryview(LAST_MESSAGE.encode(last))] if header.is_last else ())
    if isinstance(taken, Copy):
        return taken
    return next((event.reason for event in taken if isinstance(event, FrameRejected)), None)


def given(transfer: ReceiveTransfer, header: FrameHeader, last: LastMessage = LAST) -> list[ReceiverEvent]:
    """Passes one frame to the transfer, and lands it unless it is refused. Returns the events that follow."""
    taken = transfer.take(header, [memoryview(LAST_MESSAGE.encode(last))] if header.is_last else ())
    return transfer.landed(header) if isinstance(taken, Copy) else taken


def receive(transfer: ReceiveTransfer, header: FrameHeader, last: LastMessage = LAST) -> Copy | Rejection | None:
    taken = take(transfer, header, last)
    if isinstance(taken, Copy):
        transfer.landed(header)
    return taken


@pytest.mark.parametrize("order", list(permutations([*FRAMES, LAST_HEADER])))
def test_delivered_when_all_is_there_in_any_order(order: tuple[FrameHeader, ...]) -> None:
    transfer = reserved()
    assert transfer.state is TransferState.REQUESTED
    for header in order[:-1]:
        receive(transfer, header)
        assert transfer.state is TransferState.RECEIVING
    receive(transfer, order[-1])
    assert transfer.state is TransferState.DELIVERED
    assert transfer.last == LAST
    assert {receive(transfer, header) for header in order} == {Rejection.NOT_RECEIVING}


def test_a_landing_names_the_receivers_own_pages() -> None:
    copy = take(reserved(), FRAMES[1])
    assert isinstance(copy, Copy)
    assert copy.sources.spans == [(0, 256), (256, 320), (384, 448)]
    assert copy.targets.spans == [(1280, 1536), (512, 576), (640, 704)]


@pytest.mark.parametrize("change", [{}, {"sender_instance": 78}, {"attempt": 0}])
@pytest.mark.parametrize("is_landing", [True, False])
def test_damage_fails_the_transfer_whose_sender_and_attempt_the_frame_names(
    change: dict[str, int], is_landing: bool
) -> None:
    transfer, header = reserved(), FRAMES[0]._replace(**change)
    if is_landing and not change:
        assert isinstance(transfer.take(header), Copy)
        events: Copy | list[ReceiverEvent] = transfer.landed(header, Rejection.CHECKSUM)
    else:
        events = transfer.take(header, (), Rejection.CHECKSUM)
    refused = FrameRejected(Rejection.CHECKSUM)
    assert events == [refused, *[TransferFailed(4, "frame 0 was refused: checksum")] * (not change)]
    assert transfer.state is (TransferState.REQUESTED if change else TransferState.FAILED)
    again = transfer.take(header, (), Rejection.CHECKSUM)
    assert again == [refused], "a transfer fails once"


def test_what_follows_a_frame_is_told_once() -> None:
    transfer = reserved()
    told: list[ReceiverEvent] = []
    for header in FRAMES:
        assert isinstance(transfer.take(header), Copy)
        told += transfer.landed(header)
    assert told == [FirstFrame(4)]
    assert transfer.take(LAST_HEADER, [memoryview(LAST_MESSAGE.encode(LAST))]) == [Delivered(4, LAST)]
    early = reserved()
    assert early.take(LAST_HEADER, [memoryview(LAST_MESSAGE.encode(LAST))]) == [FirstFrame(4)]
    refused = FrameRejected(Rejection.MALFORMED)
    failed = TransferFailed(4, "frame 0 was refused: malformed")
    assert reserved().take(LAST_HEADER, [memoryview(b"garbage")]) == [refused, failed]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_frame_has_the_size_of_its_own_layers_pages(in_place: bool) -> None:
    sizes = [TWO_GROUPS.layer(layer).page_bytes for layer in range(3)]
    sizes = [num_bytes * NUM_TOKENS // 4 if in_place else num_bytes * 2 for num_bytes in sizes]
    assert sizes[0] == sizes[1] == 4 * 2 * sizes[2] // 2
    make = partial(ReceiveTransfer, TWO_GROUPS, 1, 77, PAGES, NUM_TOKENS, in_place=in_place)
    transfer = make()
    for layer, size in enumerate(sizes):
        header = BLANK._replace(layer=layer, payload_bytes=size)
        assert take(make(), header._replace(payload_bytes=sizes[2 - layer // 2 * 2])) is Rejection.SIZE
        copy = take(transfer, header)
        assert isinstance(copy, Copy)
        assert copy.targets.num_bytes == NUM_TOKENS * 2 * TWO_GROUPS.layer(layer).token_bytes
    assert take(transfer, BLANK._replace(layer=3, payload_bytes=sizes[2])) is Rejection.LAYER_RANGE


def test_what_lies_before_the_start_is_refused_and_not_awaited() -> None:
    make = partial(ReceiveTransfer, LAYOUT, 1, 77, PAGES[1:], NUM_TOKENS, start=4)
    for num_pages, num_tokens in [(1, 4), (2, 6)]:
        early = BLANK._replace(page_start=0, num_pages=num_pages, num_tokens=num_tokens)
        early = early._replace(payload_bytes=num_pages * LAYOUT.layer(0).page_bytes)
        assert take(make(), early) is Rejection.PAGE_RANGE

    transfer = make()
    frames = [
        frame._replace(page_start=1, num_pages=1, num_tokens=2, payload_bytes=LAYOUT.layer(0).page_bytes)
        for frame in FRAMES
    ]
    for frame in frames:
        copy = receive(transfer, frame)
        assert isinstance(copy, Copy) and copy.targets.spans == [(512, 576), (640, 704)]
    assert receive(transfer, LAST_HEADER) is None
    assert transfer.state is TransferState.DELIVERED


def test_a_page_lands_at_most_once() -> None:
    transfer = reserved()
    part = FRAMES[0]._replace(num_pages=1, num_tokens=4, payload_bytes=LAYOUT.layer(0).page_bytes)
    receive(transfer, part)
    assert take(transfer, part) is Rejection.ALREADY_LANDED
    receive(transfer, LAST_HEADER)
    assert take(transfer, LAST_HEADER) is Rejection.ALREADY_LANDED
    assert take(transfer, FRAMES[0]) is Rejection.PARTLY_LANDED


def test_a_frame_is_claimed_before_its_copy_has_ended() -> None:
    transfer = reserved()
    assert isinstance(take(transfer, FRAMES[0]), Copy)
    assert take(transfer, FRAMES[0]) is Rejection.ALREADY_LANDED
    assert transfer.state is TransferState.REQUESTED


@pytest.mark.parametrize(
    "last,reason",
    [
        (replace(LAST, digest=LAST.digest ^ 1), "digest"),
        (replace(LAST, num_frames=LAYOUT.num_layers + 1), "4 frames were announced; 3 landed"),
        (replace(LAST, num_frames=LAYOUT.num_layers - 1), "2 frames were announced; 2 landed"),
        (replace(LAST, num_frames=0), "0 frames were announced; 0 landed"),
    ],
)
def test_an_announcement_that_does_not_agree_fails_the_transfer(last: LastMessage, reason: str) -> None:
    transfer, events = reserved(), list[ReceiverEvent]()
    events += given(transfer, LAST_HEADER, last)
    for header in FRAMES:
        events += given(transfer, header)
    assert transfer.state is TransferState.FAILED
    (failed,) = (event for event in events if isinstance(event, TransferFailed))
    assert reason in failed.reason


def test_nothing_lands_after_release_or_failure() -> None:
    released, failed = reserved(), reserved()
    released.release()
    failed.take(FRAMES[0]._replace(num_tokens=999))
    failed.release()
    assert (released.state, failed.state) == (TransferState.CANCELLED, TransferState.FAILED)
    assert take(released, FRAMES[0]) is Rejection.NOT_RECEIVING
    assert take(failed, LAST_HEADER) is Rejection.NOT_RECEIVING


def test_a_prompt_without_pages_needs_only_the_last_frame() -> None:
    transfer = ReceiveTransfer(LAYOUT, 1, 77, (), 0)
    receive(transfer, LAST_HEADER, LastMessage((9,), 0, 0))
    assert transfer.state is TransferState.DELIVERED


def test_in_order_the_last_frame_waits_for_what_is_landing_and_for_nothing_else() -> None:
    transfer = ReceiveTransfer(LAYOUT, 1, 77, PAGES, NUM_TOKENS, in_order=True)
    receive(transfer, FRAMES[0])
    assert isinstance(take(transfer, FRAMES[1]), Copy)
    receive(transfer, LAST_HEADER)
    assert transfer.state is TransferState.RECEIVING, "a device checks the second"
    failed = TransferFailed(LAST_HEADER.reservation, "3 frames were announced; 2 landed with 4 of 6 pages")
    assert transfer.landed(FRAMES[1]) == [failed]
    assert transfer.state is TransferState.FAILED
