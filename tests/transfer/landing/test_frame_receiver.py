"""Frames as bytes, against the receiver: whatever the header says, the promise holds."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.frame import LAST_LAYER, LAST_MESSAGE, FrameHeader, LastMessage, pack_header, seal, seal_sum
from tests.transfer.memory import LAYOUT, HostMemory, Queue, expected_pool
from transfer.in_place.writers import Writers
from transfer.landing.frame_receiver import POLL_FRAMES, FrameReceiver
from transfer.landing.transfer import (
    FATAL,
    CreditReturned,
    Delivered,
    FrameRejected,
    LastInDoubt,
    ReceiverEvent,
    Rejection,
    TransferFailed,
)

SENDER, NUM_TOKENS, PAGES = 77, 6, [5, 2]


class Case:
    """One reservation, and the frames that an honest sender would send for it."""

    def __init__(self, is_ordered: bool = False) -> None:
        self.source, self.pool = HostMemory(LAYOUT, 3, seed=1), HostMemory(LAYOUT, 8, seed=2)
        self.before = bytes(self.pool.pool)
        self.queue = Queue()
        self.queue.is_ordered = is_ordered
        self.receiver = FrameReceiver(self.pool, self.queue)
        self.receiver.reserve(4, 1, SENDER, PAGES, NUM_TOKENS)
        self.payloads = [bytes(self.source.page_bytes_view(layer, 1, 2)) for layer in range(LAYOUT.num_layers)]
        blank = FrameHeader(0, SENDER, 4, 1, 0, 0, 2, NUM_TOKENS, 0)
        self.headers = [
            seal(blank._replace(layer=layer, sequence=layer), payload) for layer, payload in enumerate(self.payloads)
        ]
        digest = sum(header.checksum for header in self.headers) % 2**64
        self.payloads.append(LAST_MESSAGE.encode(LastMessage((9,), LAYOUT.num_layers, digest)))
        last = blank._replace(layer=LAST_LAYER, sequence=LAYOUT.num_layers, num_pages=0, num_tokens=0)
        self.headers.append(seal(last, self.payloads[-1]))

    def give(self, header: FrameHeader, *parts: bytes) -> list[ReceiverEvent]:
        self.queue.frames.append([pack_header(header), *parts])
        return self.receiver.poll()

    def finish(self) -> list[ReceiverEvent]:
        return [event for pair in zip(self.headers, self.payloads, strict=True) for event in self.give(*pair)]

    def exact(self) -> bool:
        return self.pool.pool == expected_pool(self.before, self.pool, PAGES, self.source, [1, 2], NUM_TOKENS)


@given(
    st.integers(0, LAYOUT.num_layers),
    st.sampled_from([field for field in FrameHeader._fields if field != "checksum"]),
    st.one_of(st.integers(0, 8), st.sampled_from([SENDER, LAST_LAYER, 2**16 - 2])),
    st.booleans(),
)
def test_any_header_field_may_lie(which: int, field: str, value: int, sealed: bool) -> None:
    case = Case()
    value = 1 if field == "check" else value  # no other kind can be read at all
    lie = case.headers[which]._replace(**{field: value})
    payload = case.payloads[which]
    if sealed and field != "payload_bytes":
        lie = seal(lie, payload)
    if lie == case.headers[which]:
        return
    events = case.give(lie, payload)
    failed = [event for event in events if isinstance(event, TransferFailed)]
    rejected = [event for event in events if isinstance(event, FrameRejected)]
    assert not [event for event in events if isinstance(event, Delivered)]
    assert sum(event.num_bytes for event in events if isinstance(event, CreditReturned)) == len(payload)
    later = case.finish()
    delivered = [event for event in later if isinstance(event, Delivered)]
    if failed:
        assert rejected[0].reason in FATAL
        assert delivered == []
    elif delivered:
        assert case.exact()
        assert rejected or field == "sequence"
    else:  # a sealed lie about the layer or the sequence, or two frames for one place, shows in plan or digest
        assert [event for event in later if isinstance(event, TransferFailed)]


@given(st.lists(st.integers(1, 2 * LAYOUT.layer(0).page_bytes - 1), max_size=5))
def test_a_payload_may_come_in_any_parts(cuts: list[int]) -> None:
    case = Case()
    for header, payload in zip(case.headers, case.payloads, strict=True):
        edges = [0, *sorted(min(cut, len(payload)) for cut in cuts), len(payload)]
        events = case.give(header, *(payload[start:end] for start, end in pairwise(edges)))
    assert Delivered(4, LastMessage((9,), 3, sum(h.checksum for h in case.headers[:-1]) % 2**64)) in events
    assert case.exact()


@given(st.lists(st.binary(max_size=120), min_size=1, max_size=4))
def test_any_bytes_are_refused_and_harmless(parts: list[bytes]) -> None:
    case = Case()
    case.queue.frames.append(parts)
    assert FrameRejected(Rejection.MALFORMED) in case.receiver.poll()
    assert case.pool.pool == case.before
    assert [event for event in case.finish() if isinstance(event, Delivered)]


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", LAST_MESSAGE.encode(LastMessage((1,), 3, 0))[:-1], b"\x93\x01\xa1x\x80"]
)
def test_a_last_frame_that_cannot_be_read_fails_the_transfer(payload: bytes) -> None:
    case = Case()
    events = case.give(seal(case.headers[-1], payload), payload)
    assert [event.reason for event in events if isinstance(event, FrameRejected)] == [Rejection.MALFORMED]
    assert [event.reservation for event in events if isinstance(event, TransferFailed)] == [4]


@pytest.mark.parametrize("change", [1, -1])
def test_size_is_checked_before_checksum(change: int) -> None:
    case = Case()
    header, payload = case.headers[0], case.payloads[0]
    events = case.give(header, payload + b"x" if change > 0 else payload[:change])
    assert FrameRejected(Rejection.SIZE) in events
    assert case.pool.pool == case.before


def test_damage_in_a_frame_of_a_stranger_fails_nobody() -> None:
    case = Case()
    header = case.headers[0]._replace(sender_instance=SENDER + 1)
    assert FrameRejected(Rejection.CHECKSUM) in case.give(header, case.payloads[0])
    assert [event for event in case.finish() if isinstance(event, Delivered)]
    assert case.exact()


def test_a_poll_takes_a_bounded_number_of_frames() -> None:
    case = Case()
    case.queue.frames.extend([b"noise"] for _ in range(POLL_FRAMES + 1))
    assert len(case.receiver.poll()) == POLL_FRAMES
    assert len(case.receiver.poll()) == 1
    assert case.receiver.counters["rejected_malformed"] == POLL_FRAMES + 1


@pytest.mark.parametrize("field", ["sender_instance", "reservation", "attempt"])
def test_a_damaged_frame_that_may_have_been_the_last_puts_that_in_doubt(field: str) -> None:
    case = Case()
    *frames, (last, message) = zip(case.headers, case.payloads, strict=True)
    stray = last._replace(**{field: getattr(last, field) ^ 64})
    for header, payload in frames:
        assert LastInDoubt(4) not in case.give(stray, message), "there is more to come than the last"
        case.give(header, payload)
    assert case.give(stray, message).count(LastInDoubt(4)) == 1
    assert LastInDoubt(4) not in case.receiver.poll()
    assert LastInDoubt(4) not in case.give(seal(stray, message), message), "it is whole, and another's"
    case.queue.frames.append([b"noise"])
    assert LastInDoubt(4) in case.receiver.poll()
    assert [event for event in case.give(last, message) if isinstance(event, Delivered)] and case.exact()
    assert LastInDoubt(4) not in case.give(stray, message)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_what_the_last_frame_does_not_find_never_comes_where_frames_keep_their_order(is_ordered: bool) -> None:
    case = Case(is_ordered)
    pairs = list(zip(case.headers, case.payloads, strict=True))
    case.give(*pairs[0])
    failed = [event for event in case.give(*pairs[-1]) if isinstance(event, TransferFailed)]
    why = "3 frames were announced; 1 landed with 2 of 6 pages"
    assert failed == [TransferFailed(4, why)] * is_ordered
    for pair in pairs[1:-1]:
        events = case.give(*pair)
    assert any(isinstance(event, Delivered) for event in events) is not is_ordered


class DeviceWriters(Writers):
    """Every prefill worker writes by a device, and has ended when its process has."""

    @property
    def lends(self) -> bool:
        return True

    def is_on_device(self, instance: int) -> bool:
        return True

    def began(self, reservation: int, instance: int) -> None:
        assert instance == SENDER


@dataclass
class Reading:
    """The sums that a device makes in one call; a test says when they are there."""

    totals: list[int]
    done: bool = False


@dataclass
class SlowReader:
    """A device that sums as the headers say, or wrongly."""

    totals: list[int]
    readings: list[Reading] = field(default_factory=list)

    def begin(self, layers: range, targets: object) -> Reading:
        self.readings.append(Reading(self.totals[layers.start : layers.stop]))
        return self.readings[-1]


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("num_summed", range(LAYOUT.num_layers + 1))
def test_a_sum_that_a_device_makes_late_does_not_reach_a_transfer_that_was_released(
    num_summed: int, is_right: bool
) -> None:
    """`num_summed` frames arrive first and are summed before the release, the others behind it."""
    case = Case()
    totals = [7 + layer for layer in range(LAYOUT.num_layers)]
    num_bytes = NUM_TOKENS * 2 * LAYOUT.layer(0).token_bytes  # what was written in place has no rest of a page
    blanks = [header._replace(reservation=9, payload_bytes=num_bytes) for header in case.headers[:-1]]
    headers = [seal_sum(blank, total) for blank, total in zip(blanks, totals, strict=True)]
    reader = SlowReader([total + (not is_right) * 256 for total in totals])
    receiver = FrameReceiver(case.pool, case.queue, DeviceWriters(), cast(Any, reader))
    transfer = receiver.reserve(9, 1, SENDER, PAGES, NUM_TOKENS, in_place=True)
    for arriving in (headers[:num_summed], headers[num_summed:]):
        case.queue.frames += [[pack_header(header)] for header in arriving]
        receiver.poll()
    assert receiver.is_checking
    assert [len(each.totals) for each in reader.readings] == [
        num for num in (num_summed, LAYOUT.num_layers - num_summed) if num
    ]  # one call for those that arrive together

    reader.readings[0].done = num_summed > 0
    receiver.poll()
    landed = receiver.counters.get("frames", 0)
    assert landed == (num_summed if is_right else 0)

    receiver.release(9)
    state = transfer.state
    for reading in reader.readings:
        reading.done = True
    assert receiver.poll() == [] and not receiver.is_checking
    assert transfer.state is state and receiver.counters.get("frames", 0) == landed
