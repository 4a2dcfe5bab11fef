from itertools import pairwise

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.frame import (
    HEADER_BYTES,
    LAST_LAYER,
    LAST_MESSAGE,
    MAGIC,
    VERSION,
    Check,
    FrameHeader,
    LastMessage,
    extend_digest,
    pack_header,
    seal,
    seal_sum,
    unpack_header,
    verify_checksum,
)
from protocol.message import MAX_BLOB_BYTES
from protocol.message import VERSION as MESSAGE_VERSION
from protocol.worker_facts import Stamp

HEADER = FrameHeader(
    layer=3,
    sender_instance=2**62 - 1,
    reservation=2**40,
    attempt=1,
    sequence=7,
    page_start=5,
    num_pages=2,
    num_tokens=17,
    payload_bytes=0,
)
U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@given(
    st.builds(
        FrameHeader,
        layer=U16,
        sender_instance=U64,
        reservation=U64,
        attempt=U32,
        sequence=U32,
        page_start=U32,
        num_pages=U32,
        num_tokens=U32,
        payload_bytes=U32,
        checksum=U64,
        check=st.sampled_from(Check),
    )
)
def test_header_survives_the_wire(header: FrameHeader) -> None:
    raw = pack_header(header)
    assert len(raw) == HEADER_BYTES
    assert unpack_header(raw) == header
    assert header.is_last == (header.layer == LAST_LAYER)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_parts_count_as_joined(payload: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(payload)) for cut in cuts), len(payload)]
    parts = [memoryview(payload)[start:end] for start, end in pairwise(edges)]
    sealed = seal(HEADER, *parts)
    assert sealed == seal(HEADER, payload)
    assert sealed.payload_bytes == len(payload)
    verify_checksum(sealed, [payload])
    verify_checksum(sealed, parts)


def test_any_turned_bit_is_noticed() -> None:
    payload = bytes(range(64))
    raw = pack_header(seal(HEADER, payload)) + payload
    for position in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(WireError):
            verify_checksum(unpack_header(bytes(damaged[:HEADER_BYTES])), [bytes(damaged[HEADER_BYTES:])])


@pytest.mark.parametrize("field", FrameHeader._fields)
def test_any_other_field_value_is_noticed(field: str) -> None:
    sealed = seal(HEADER, b"payload")
    with pytest.raises(WireError):
        verify_checksum(sealed._replace(**{field: getattr(sealed, field) ^ 1}), [b"payload"])


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES + 1])
def test_header_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(WireError, match=f"{size} bytes"):
        unpack_header(bytes(size))


def test_foreign_magic_and_version_are_named() -> None:
    raw = bytearray(pack_header(HEADER))
    raw[0] ^= 0xFF
    with pytest.raises(WireError, match=f"expected {MAGIC:#x}"):
        unpack_header(bytes(raw))
    raw = bytearray(pack_header(HEADER))
    raw[4] += 1
    with pytest.raises(WireError, match=f"version {VERSION + 1}, expected {VERSION}"):
        unpack_header(bytes(raw))


def test_a_checksum_of_an_unknown_kind_is_named() -> None:
    raw = bytearray(pack_header(HEADER))
    raw[5] = 2
    with pytest.raises(WireError, match="checksum of kind 2, expected one of 0, 1"):
        unpack_header(bytes(raw))


@given(U64, U64)
def test_a_sum_of_a_device_is_sealed_with_its_header(device_sum: int, other: int) -> None:
    sealed = seal_sum(HEADER, device_sum)
    assert sealed.check == Check.DEVICE_SUM
    assert (seal_sum(HEADER, other) == sealed) == (other == device_sum)
    assert unpack_header(pack_header(sealed)) == sealed
    for field in FrameHeader._fields:
        if field not in ("checksum", "check"):
            changed = HEADER._replace(**{field: getattr(HEADER, field) ^ 1})
            assert seal_sum(changed, device_sum).checksum != sealed.checksum


@given(st.lists(U64, max_size=6).flatmap(lambda sums: st.tuples(st.just(sums), st.permutations(sums))))
def test_digest_does_not_depend_on_order(orders: tuple[list[int], list[int]]) -> None:
    digests = []
    for checksums in orders:
        digest = 0
        for checksum in checksums:
            digest = extend_digest(digest, HEADER._replace(checksum=checksum))
        digests.append(digest)
    assert digests[0] == digests[1]
    assert 0 <= digests[0] < 2**64


def test_last_message_survives_the_wire() -> None:
    last = LastMessage((5, 6), 12, 2**64 - 1, (Stamp("sent", 1.5, "p0"),), 3, b"\x00\xff" * 64)
    assert LAST_MESSAGE.decode(LAST_MESSAGE.encode(last)) == last


@pytest.mark.parametrize("hidden", ["text", b"\x00" * (MAX_BLOB_BYTES + 1), 5])
def test_a_hidden_state_that_is_no_or_too_many_bytes_is_refused(hidden: object) -> None:
    fields = {"first_tokens": (5,), "num_frames": 1, "digest": 1, "hidden": hidden}
    with pytest.raises(WireError, match=r"last frame: LastMessage.hidden: got"):
        LAST_MESSAGE.decode(msgpack.packb([MESSAGE_VERSION, "LastMessage", fields]))
