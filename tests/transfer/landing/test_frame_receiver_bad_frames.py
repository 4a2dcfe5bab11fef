"""Frames that are wrong in every way, beside good transfers: refused by kind, and nobody else notices."""

import logging
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocol.frame import (
    HEADER,
    HEADER_BYTES,
    LAST_LAYER,
    LAST_MESSAGE,
    MAGIC,
    VERSION,
    Check,
    FrameHeader,
    pack_header,
    seal,
)
from tests.transfer.bad_frames import LAYOUT, NEIGHBOUR, NUM_TOKENS, VICTIM, Bench, Parts
from transfer.landing.frame_receiver import MAX_PARTS
from transfer.landing.transfer import FATAL, CreditReturned, Rejection


def raw_header(header: FrameHeader, magic: int = MAGIC, version: int = VERSION) -> bytes:
    packed = bytearray(pack_header(header))
    struct.pack_into("<IH", packed, 0, magic, version)
    return bytes(packed)


KV, KV_PAYLOAD = VICTIM.frames()[1]
LAST, LAST_PAYLOAD = VICTIM.frames()[-1]
KvCase = tuple[str, Callable[[], Parts], Rejection]


def lie(reason: Rejection, sealed: bool = True, **changed: int) -> KvCase:
    """A KV frame with other header fields; sealed: the checksum is right for them."""
    header = KV._replace(**changed)
    header = seal(header, KV_PAYLOAD) if sealed else header
    name = ",".join(f"{field}={value}" for field, value in changed.items())
    return f"{'sealed ' if sealed else ''}{name}", lambda: [pack_header(header), KV_PAYLOAD], reason


def last_lie(name: str, payload: bytes, reason: Rejection = Rejection.MALFORMED) -> KvCase:
    return f"last: {name}", lambda: [pack_header(seal(LAST, payload)), payload], reason


def last_header(reason: Rejection, **changed: int) -> KvCase:
    header = seal(LAST._replace(**changed), LAST_PAYLOAD)
    name = ",".join(f"{field}={value}" for field, value in changed.items())
    return f"last: {name}", lambda: [pack_header(header), LAST_PAYLOAD], reason


def resized(name: str, payload: bytes) -> KvCase:
    return f"resized to {name}", lambda: [pack_header(seal(KV, payload)), payload], Rejection.SIZE


def short_header(size: int) -> KvCase:
    return f"header of {size} bytes", lambda: [pack_header(KV)[:size], KV_PAYLOAD], Rejection.MALFORMED


def last_with(**changed: Any) -> bytes:
    return LAST_MESSAGE.encode(replace(LAST_MESSAGE.decode(LAST_PAYLOAD), **changed))


SIZE, CHECKSUM, MALFORMED = Rejection.SIZE, Rejection.CHECKSUM, Rejection.MALFORMED
CASES: list[KvCase] = [
    # who sends, and for whom
    lie(Rejection.WRONG_SENDER, sender_instance=78),
    lie(Rejection.WRONG_SENDER, sender_instance=0),
    lie(Rejection.WRONG_SENDER, sender_instance=2**64 - 1),
    lie(Rejection.WRONG_ATTEMPT, attempt=0),
    lie(Rejection.WRONG_ATTEMPT, attempt=2**32 - 1),
    lie(Rejection.UNKNOWN_RESERVATION, reservation=5),
    lie(Rejection.UNKNOWN_RESERVATION, reservation=0),
    lie(Rejection.UNKNOWN_RESERVATION, reservation=2**64 - 1),
    lie(Rejection.WRONG_SENDER, reservation=NEIGHBOUR.reservation),
    lie(Rejection.WRONG_ATTEMPT, reservation=NEIGHBOUR.reservation, sender_instance=NEIGHBOUR.sender),
    # where it should go
    lie(Rejection.LAYER_RANGE, layer=LAYOUT.num_layers),
    lie(Rejection.LAYER_RANGE, layer=LAST_LAYER - 1),
    lie(Rejection.PAGE_RANGE, page_start=1),
    lie(Rejection.PAGE_RANGE, page_start=2),
    lie(Rejection.PAGE_RANGE, page_start=2**32 - 1),
    lie(Rejection.PAGE_RANGE, num_pages=0),
    lie(Rejection.PAGE_RANGE, num_pages=3),
    lie(Rejection.PAGE_RANGE, num_pages=2**32 - 1),
    lie(Rejection.PAGE_RANGE, page_start=2**32 - 1, num_pages=2),
    lie(Rejection.NUM_TOKENS, num_tokens=NUM_TOKENS - 1),
    lie(Rejection.NUM_TOKENS, num_tokens=NUM_TOKENS + 1),
    lie(Rejection.NUM_TOKENS, num_tokens=0),
    lie(Rejection.NUM_TOKENS, num_tokens=2**32 - 1),
    lie(SIZE, num_pages=1, num_tokens=4),
    lie(SIZE, page_start=1, num_pages=1, num_tokens=2),
    # another kind of checksum than is due
    lie(Rejection.CHECK_KIND, check=Check.DEVICE_SUM),
    lie(Rejection.CHECK_KIND, sealed=False, check=Check.DEVICE_SUM),
    last_header(Rejection.CHECK_KIND, check=Check.DEVICE_SUM),
    # damage: the checksum tells
    lie(CHECKSUM, sealed=False, layer=0),
    lie(CHECKSUM, sealed=False, sequence=9),
    lie(CHECKSUM, sealed=False, page_start=1),
    lie(CHECKSUM, sealed=False, num_pages=1),
    lie(CHECKSUM, sealed=False, num_tokens=5),
    lie(CHECKSUM, sealed=False, checksum=0),
    lie(CHECKSUM, sealed=False, checksum=KV.checksum ^ 1),
    lie(CHECKSUM, sealed=False, checksum=KV.checksum ^ 2**63),
    lie(CHECKSUM, sealed=False, sender_instance=78),
    lie(CHECKSUM, sealed=False, attempt=2),
    lie(CHECKSUM, sealed=False, reservation=6),
    lie(SIZE, sealed=False, payload_bytes=0),
    lie(SIZE, sealed=False, payload_bytes=KV.payload_bytes - 1),
    lie(SIZE, sealed=False, payload_bytes=KV.payload_bytes + 1),
    lie(SIZE, sealed=False, payload_bytes=2**32 - 1),
    ("payload missing", lambda: [pack_header(KV)], SIZE),
    ("payload empty", lambda: [pack_header(KV), b""], SIZE),
    ("payload cut", lambda: [pack_header(KV), KV_PAYLOAD[:-1]], SIZE),
    ("payload longer", lambda: [pack_header(KV), KV_PAYLOAD + b"x"], SIZE),
    ("payload twice", lambda: [pack_header(KV), KV_PAYLOAD, KV_PAYLOAD], SIZE),
    ("a part more", lambda: [pack_header(KV), KV_PAYLOAD, b"x"], SIZE),
    ("parts exchanged", lambda: [pack_header(KV), KV_PAYLOAD[64:], KV_PAYLOAD[:64]], CHECKSUM),
    ("first bit", lambda: [pack_header(KV), bytes([KV_PAYLOAD[0] ^ 1]) + KV_PAYLOAD[1:]], CHECKSUM),
    ("last bit", lambda: [pack_header(KV), KV_PAYLOAD[:-1] + bytes([KV_PAYLOAD[-1] ^ 128])], CHECKSUM),
    ("another frame's payload", lambda: [pack_header(KV), VICTIM.frames()[0][1]], CHECKSUM),
    resized("one page", KV_PAYLOAD[: LAYOUT.layer(0).page_bytes]),
    resized("nothing", b""),
    resized("too much", KV_PAYLOAD * 4),
    # no header at all
    ("nothing", lambda: [b""], MALFORMED),
    ("payload first", lambda: [KV_PAYLOAD, pack_header(KV)], MALFORMED),
    ("header twice", lambda: [pack_header(KV) * 2, KV_PAYLOAD], MALFORMED),
    ("header and payload joined", lambda: [pack_header(KV) + KV_PAYLOAD], MALFORMED),
    ("magic 0", lambda: [raw_header(KV, magic=0), KV_PAYLOAD], MALFORMED),
    ("magic reversed", lambda: [raw_header(KV, magic=0x4241544E), KV_PAYLOAD], MALFORMED),
    ("magic all ones", lambda: [raw_header(KV, magic=2**32 - 1), KV_PAYLOAD], MALFORMED),
    ("version 0", lambda: [raw_header(KV, version=0), KV_PAYLOAD], MALFORMED),
    ("version 2", lambda: [raw_header(KV, version=2), KV_PAYLOAD], MALFORMED),
    ("version 65535", lambda: [raw_header(KV, version=2**16 - 1), KV_PAYLOAD], MALFORMED),
    ("zeros", lambda: [bytes(HEADER_BYTES), KV_PAYLOAD], MALFORMED),
    ("http", lambda: [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], MALFORMED),
    ("too many parts", lambda: [pack_header(KV), KV_PAYLOAD, *[b""] * MAX_PARTS], MALFORMED),
    *map(short_header, range(HEADER_BYTES)),
    # the last frame
    last_header(Rejection.PAGE_RANGE, page_start=1),
    last_header(Rejection.PAGE_RANGE, num_pages=1),
    last_header(Rejection.PAGE_RANGE, num_tokens=1),
    last_header(Rejection.WRONG_SENDER, sender_instance=78),
    last_header(Rejection.WRONG_ATTEMPT, attempt=0),
    ("last: cut", lambda: [pack_header(LAST), LAST_PAYLOAD[:-1]], SIZE),
    ("last: damaged", lambda: [pack_header(LAST), LAST_PAYLOAD[:-1] + b"\xff"], CHECKSUM),
    last_lie("empty", b""),
    last_lie("no msgpack", b"\xc1"),
    last_lie("cut and sealed", LAST_PAYLOAD[:-1]),
    last_lie("longer", LAST_PAYLOAD + b"\x00"),
    last_lie("tokens of text", LAST_PAYLOAD.replace(b"\x91\x09", b"\x91\xa1x")),
    last_lie("negative frames", last_with(num_frames=-1)),
    last_lie("negative digest", last_with(digest=-1)),
    last_lie("another field", LAST_PAYLOAD.replace(b"num_frames", b"num_framez")),
    last_lie("deep", b"\x91" * 3000),
    last_lie("a KV payload", KV_PAYLOAD),
]  # fmt: skip


@pytest.mark.parametrize("name, parts, reason", CASES, ids=[name for name, _, _ in CASES])
@pytest.mark.parametrize("after", [0, 1])
def test_one_wrong_frame(name: str, parts: Callable[[], Parts], reason: Rejection, after: int) -> None:
    """It comes first, or after one good frame. Only what its right sender has certainly said may fail a transfer."""
    bench = Bench()
    bench.give(*([pack_header(header), payload] for header, payload in VICTIM.frames()[:after]))
    frame = parts()
    bench.give(frame)
    assert bench.rejections() == {reason: 1}
    bench.check()
    bench.give_honest(NEIGHBOUR)
    bench.give(*([pack_header(header), payload] for header, payload in VICTIM.frames()[after:]))
    assert bench.is_delivered(NEIGHBOUR) and not bench.has_failed(NEIGHBOUR)
    assert bench.is_delivered(VICTIM) != bench.has_failed(VICTIM)
    if bench.has_failed(VICTIM):
        assert reason in FATAL and len(frame[0]) == HEADER_BYTES
        assert HEADER.unpack(frame[0])[3:6] == (VICTIM.sender, VICTIM.reservation, VICTIM.attempt)
    bench.check()
    bench.check_aftermath()


@pytest.mark.parametrize("which", range(LAYOUT.num_layers + 1))
@pytest.mark.parametrize("times", [1, 300])
def test_a_frame_that_is_replayed_lands_once(which: int, times: int) -> None:
    bench = Bench()
    header, payload = VICTIM.frames()[which]
    bench.give(*[[pack_header(header), payload]] * (1 + times))
    assert bench.rejections() == {Rejection.ALREADY_LANDED: times}
    bench.give(*([pack_header(h), p] for index, (h, p) in enumerate(VICTIM.frames()) if index != which))
    assert bench.is_delivered(VICTIM)
    bench.give(*[[pack_header(header), payload]] * times)
    assert bench.rejections() == {Rejection.ALREADY_LANDED: times, Rejection.NOT_RECEIVING: times}
    bench.check()
    bench.check_aftermath()


def test_a_frame_over_what_has_landed_in_part_fails_the_transfer() -> None:
    bench = Bench()
    page = KV_PAYLOAD[: LAYOUT.layer(0).page_bytes]
    bench.give([pack_header(seal(KV._replace(num_pages=1, num_tokens=4), page)), page], [pack_header(KV), KV_PAYLOAD])
    assert bench.rejections() == {Rejection.PARTLY_LANDED: 1}
    assert bench.has_failed(VICTIM)
    bench.give_honest(NEIGHBOUR)
    assert bench.is_delivered(NEIGHBOUR)
    bench.check()
    bench.check_aftermath()


def test_a_flood_is_counted_and_logged_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.WARNING):
        bench.give(*([b"noise %d" % index] for index in range(5000)))
        bench.give(*[[pack_header(KV._replace(reservation=6)), KV_PAYLOAD]] * 150)
    assert bench.rejections() == {Rejection.MALFORMED: 5000, Rejection.CHECKSUM: 150}
    lines = [record.__dict__["baton_fields"] for record in caplog.records if record.getMessage() == "frame refused"]
    told = [(fields["kind"], fields["count"]) for fields in lines]
    assert told == [("malformed", 10**power) for power in range(4)] + [("checksum", 10**power) for power in range(3)]
    bench.give_honest(VICTIM)
    assert bench.is_delivered(VICTIM)


def test_credit_is_returned_for_what_came_and_for_nothing_else() -> None:
    bench = Bench()
    bench.give(
        [pack_header(KV), KV_PAYLOAD[:-7]], [b"noise" * 100], [pack_header(KV._replace(sender_instance=5)), b"abc"]
    )
    credit = {event.sender_instance: event.num_bytes for event in bench.events if isinstance(event, CreditReturned)}
    assert credit == {77: len(KV_PAYLOAD) - 7, 5: 3}
