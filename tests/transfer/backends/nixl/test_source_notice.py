"""What a notice says, and what is refused."""

import pytest

from protocol.errors import WireError
from protocol.frame import HEADER_BYTES, FrameHeader, pack_header, seal
from transfer.backends.nixl.agent import Region
from transfer.backends.nixl.source import Notice, is_notice, pack_notice, unpack_notice

HEADER = seal(FrameHeader(0, 11, 1, 0, 0, 0, 1, 4, 0), bytes(30))
RAW = pack_header(HEADER)
PIECES = (Region(2**63, 10), Region(5, 20))


def test_a_notice_is_read_as_it_was_written() -> None:
    parts = [pack_notice(7, PIECES), RAW]
    assert is_notice(parts) and not is_notice([RAW, b"x"])
    assert unpack_notice(parts, max_bytes=30) == Notice(7, PIECES, HEADER, RAW)


@pytest.mark.parametrize(
    "parts",
    [
        [pack_notice(7, PIECES)],
        [pack_notice(7, PIECES), RAW, b""],
        [pack_notice(7, PIECES), RAW[:-1]],
        [pack_notice(7, PIECES), bytes(HEADER_BYTES)],
        [pack_notice(7, PIECES)[:-1], RAW],
        [pack_notice(7, PIECES) + b"x", RAW],
        [pack_notice(7, PIECES)[:10], RAW],
        [pack_notice(7, ()), RAW],
        [pack_notice(7, (*PIECES, Region(1, 0))), RAW],
        [pack_notice(7, PIECES[:1]), RAW],
        [pack_notice(7, (Region(1, 2**64 - 10), Region(1, 40))), RAW],
        [pack_notice(7, [Region(1, 1)] * 4097), RAW],
    ],
)
def test_what_is_not_whole_or_not_as_its_header_says_is_refused(parts: list[bytes]) -> None:
    assert is_notice(parts)
    with pytest.raises(WireError, match=r"notice|frame"):
        unpack_notice(parts, max_bytes=2**20)


def test_more_than_a_frame_may_have_is_refused() -> None:
    with pytest.raises(WireError, match="at most 29"):
        unpack_notice([pack_notice(7, PIECES), RAW], max_bytes=29)


def test_a_region_contains_what_lies_within_it_alone() -> None:
    region = Region(100, 50)
    assert region.contains(Region(100, 50)) and region.contains(Region(149, 1))
    assert not region.contains(Region(99, 2)) and not region.contains(Region(149, 2))
