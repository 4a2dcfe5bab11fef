"""Frames as bytes, against the receiver. What is wrong in them: see test_frame_receiver_bad_frames.py."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.frame import FrameHeader, LastMessage, pack_header, seal, seal_sum
from tests.transfer import bad_frames
from tests.transfer.bad_frames import NUM_TOKENS
from tests.transfer.memory import LAYOUT, HostMemory, Queue, expected_pool
from transfer.in_place.writers import Writers
from transfer.landing.frame_receiver import POLL_FRAMES, FrameReceiver
from transfer.landing.transfer import (
    Delivered,
    LastInDoubt,
    ReceiverEvent,
    TransferFailed,
)

VICTIM = replace(bad_frames.VICTIM, layout=LAYOUT)


class Case:
    """One reservation, and the frames that an honest sender would send for it."""

    def __init__(self, is_ordered: bool = False) -> None:
        self.pool = HostMemory(LAYOUT, 8, seed=2)
        self.before = bytes(self.pool.pool)
        self.queue = Queue()
        self.queue.is_ordered = is_ordered
        self.receiver = FrameReceiver(self.pool, self.queue)
        self.receiver.reserve(VICTIM.reservation, VICTIM.attempt, VICTIM.sender, VICTIM.pages, NUM_TOKENS)
        self.headers, self.payloads = zip(*VICTIM.frames(), strict=True)

    def give(self, header: FrameHeader, *parts: bytes) -> list[ReceiverEvent]:
        self.queue.frames.append([pack_header(header), *parts])
        return self.receiver.poll()

    def exact(self) -> bool:
        return self.pool.pool == expected_pool(self.before, self.pool, VICTIM.pages, VICTIM.source, [1, 2], NUM_TOKENS)


@given(st.lists(st.integers(1, 2 * LAYOUT.layer(0).page_bytes - 1), max_size=5))
def test_a_payload_may_come_in_any_parts(cuts: list[int]) -> None:
    case = Case()
    for header, payload in zip(case.headers, case.payloads, strict=True):
        edges = [0, *sorted(min(cut, len(payload)) for cut in cuts), len(payload)]
        events = case.give(header, *(payload[start:end] for start, end in pairwise(edges)))
    assert Delivered(4, LastMessage((9,), 3, sum(h.checksum for h in case.headers[:-1]) % 2**64)) in events
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
    reason = "3 frames were announced; 1 landed with 2 of 6 pages"
    assert failed == [TransferFailed(4, reason)] * is_ordered
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
        assert instance == VICTIM.sender


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
    transfer = receiver.reserve(9, 1, VICTIM.sender, VICTIM.pages, NUM_TOKENS, in_place=True)
    for arriving in (headers[:num_summed], headers[num_summed:]):
        case.queue.frames += [[pack_header(header)] for header in arriving]
        receiver.poll()
    assert receiver.is_checking
    assert [len(one.totals) for one in reader.readings] == [
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
