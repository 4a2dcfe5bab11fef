"""Frames of one prefill worker, by an agent whose reads are over when the test says so."""

import ctypes
import random
from collections import deque
from collections.abc import Sequence
from typing import cast

import pytest

from protocol.errors import WireError
from protocol.frame import FrameHeader, pack_header, seal
from transfer.backends.nixl.agent import Agent, Region
from transfer.backends.nixl.source import RING_FRAMES, Notice, Ring, Source, note_of

SIZE = 1000  # of the largest frame


class Reading:
    def __init__(self, into: Sequence[Region]) -> None:
        self.into = into
        self.is_over = False
        self.failure = ""

    def end(self, content: bytes = b"", failure: str = "") -> None:
        for region, byte in zip(self.into, content, strict=False):
            ctypes.memset(region.address, byte, region.num_bytes)
        self.is_over, self.failure = True, failure

    def close(self) -> None:
        """Nothing to let go of."""


class FakeAgent:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.reads: list[Reading] = []
        self.notes: list[bytes] = []
        self.is_gone = False

    def meet(self, export: bytes) -> str:
        self.said.append(f"meet {export.decode()}")
        return "peer"

    def forget(self, peer: str) -> None:
        self.said.append(f"forget {peer}")

    def register(self, region: Region) -> None:
        self.said.append("register")

    def unregister(self, region: Region) -> None:
        self.said.append("unregister")

    def notify(self, peer: str, note: bytes) -> None:
        self.notes.append(note)

    def read(self, peer: str, into: Sequence[Region], source: Sequence[Region], note: bytes) -> Reading:
        if self.is_gone:
            raise WireError("cannot be read: gone")
        assert [region.num_bytes for region in into] == [region.num_bytes for region in source]
        self.reads.append(Reading(into))
        return self.reads[-1]


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
def source(agent: FakeAgent) -> Source:
    return Source(cast(Agent, agent), 11, b"pages", SIZE)


def notice(number: int, *sizes: int) -> Notice:
    header = seal(FrameHeader(0, 11, 1, 0, number, 0, 1, 4, 0), bytes(sum(sizes)))
    return Notice(number, tuple(Region(2**40, size) for size in sizes), header, pack_header(header))


def test_frames_come_in_order_whatever_the_order_of_their_reads(source: Source, agent: FakeAgent) -> None:
    for number in range(3):
        assert source.announce(notice(number, 4, 6))
    assert source.next_frame() is None and len(agent.reads) == 3 and source.is_busy
    for number in (1, 2):
        agent.reads[number].end(bytes((number, number + 10)))
    assert source.next_frame() is None
    agent.reads[0].end(bytes((0, 10)))
    for number in range(3):
        frame = source.next_frame()
        assert frame is not None and frame[0] == notice(number, 4, 6).raw_header
        assert frame[1] == bytes((number,)) * 4 + bytes((number + 10,)) * 6
    assert source.next_frame() is None and not source.is_busy


def test_no_more_is_read_than_the_ring_holds_and_a_frame_in_use_is_not_written(
    source: Source, agent: FakeAgent
) -> None:
    for number in range(RING_FRAMES + 2):
        source.announce(notice(number, SIZE))
    assert source.next_frame() is None and len(agent.reads) == RING_FRAMES
    agent.reads[0].end(b"\x07")
    frame = source.next_frame()
    assert frame is not None and len(agent.reads) == RING_FRAMES
    assert source.next_frame() is None and len(agent.reads) == RING_FRAMES + 1
    assert agent.reads[-1].into == agent.reads[0].into


def test_a_failed_read_comes_without_payload_and_the_next_connects_anew_when_none_is_under_way(
    source: Source, agent: FakeAgent
) -> None:
    for number in range(2):
        source.announce(notice(number, 5))
    assert source.next_frame() is None
    agent.reads[0].end(failure="cut")
    assert source.next_frame() == [notice(0, 5).raw_header]
    assert agent.notes == [note_of(0)]
    source.announce(notice(2, 5))
    assert source.next_frame() is None and agent.said == ["meet pages", "register"]
    for read in agent.reads[1:]:
        read.end(b"\x01")
    assert source.next_frame() and source.next_frame()
    agent.is_gone = True
    source.announce(notice(3, 5))
    assert source.next_frame() == [notice(3, 5).raw_header]
    assert agent.said[2:] == ["forget peer", "meet pages"]


def test_a_ring_that_is_still_written_is_kept(source: Source, agent: FakeAgent) -> None:
    source.announce(notice(1, 5))
    assert source.next_frame() is None
    assert not source.close() and "unregister" not in agent.said
    agent.reads[0].end(b"\x01")
    assert source.close()
    assert agent.said[-2:] == ["forget peer", "unregister"]


# ---- the ring ----


@pytest.mark.parametrize("seed", range(20))
def test_parts_never_overlap_and_there_is_room_again_once_they_are_back(seed: int) -> None:
    rng = random.Random(seed)
    ring, taken, refused = Ring(100), deque[range](), 0
    for _ in range(400):
        size = rng.randint(1, rng.choice((10, 100)))
        start = ring.take(size)
        if start is None:
            refused += 1
            assert taken, "an empty ring takes everything"
            ring.give_back()
            taken.popleft()
        else:
            part = range(start, start + size)
            assert part.start >= 0 and part.stop <= 100
            assert all(part.stop <= other.start or other.stop <= part.start for other in taken)
            taken.append(part)
    assert refused > 10


def test_it_can_be_filled_to_the_last_byte() -> None:
    ring = Ring(10)
    assert [ring.take(4), ring.take(6), ring.take(1)] == [0, 4, None]
    ring.give_back()
    assert [ring.take(5), ring.take(4), ring.take(1)] == [None, 0, None]
    ring.give_back()
    assert ring.take(6) == 4
