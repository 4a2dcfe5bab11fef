"""Frames that nobody would think of, beside good transfers: whatever they say, the promise holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.frame import HEADER, HEADER_BYTES, MAGIC, VERSION, FrameHeader, pack_header, seal
from tests.transfer.bad_frames import NEIGHBOUR, VICTIM, Bench, Honest, Parts

FIELDS = FrameHeader._fields
WIDTH = {"check": 8, "layer": 16, "sender_instance": 64, "reservation": 64, "checksum": 64}
ODD = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 77, 78, 2**16 - 2, 2**16 - 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])


@st.composite
def mutated(draw: st.DrawFn) -> Parts:
    """A frame of the victim with up to three header fields changed, its payload damaged, cut or split; or noise."""
    if draw(st.integers(0, 7)) == 0:
        return draw(st.lists(st.binary(max_size=2 * HEADER_BYTES), min_size=1, max_size=4))
    header, payload = draw(st.sampled_from(VICTIM.frames()))
    kind = draw(st.sampled_from(["keep", "cut", "extend", "flip", "random"]))
    if kind == "cut":
        payload = payload[: draw(st.integers(0, len(payload)))]
    elif kind == "extend":
        payload += draw(st.binary(max_size=40))
    elif kind == "flip" and payload:
        at = draw(st.integers(0, len(payload) - 1))
        payload = payload[:at] + bytes([payload[at] ^ draw(st.integers(1, 255))]) + payload[at + 1 :]
    elif kind == "random":
        payload = draw(st.binary(max_size=64))
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=3)):
        value = draw(ODD | st.integers(0, 2**64 - 1)) % 2 ** WIDTH.get(name, 32)
        header = header._replace(**{name: value})
    if draw(st.booleans()):
        header = seal(header, payload)
    raw = pack_header(header)
    if draw(st.integers(0, 9)) == 0:
        raw = raw[: draw(st.integers(0, HEADER_BYTES))] + draw(st.binary(max_size=8))
    cut = draw(st.integers(0, len(payload)))
    return [raw, payload[:cut], payload[cut:]] if draw(st.booleans()) else [raw, payload]


def claims(parts: Parts, honest: Honest) -> bool:
    """Whether a frame says that it is of this very transfer."""
    if len(parts[0]) != HEADER_BYTES:
        return False
    magic, version, _, *who = HEADER.unpack(parts[0])[:6]
    return (magic, version % 256) == (MAGIC, VERSION) and tuple(who) == (
        honest.sender,
        honest.reservation,
        honest.attempt,
    )


def check_generated(evil: list[Parts], order: list[int]) -> None:
    """The victim's and the neighbour's good frames and the evil ones, in the order of `order`."""
    bench = Bench()
    good = [[pack_header(h), p] for pair in zip(VICTIM.frames(), NEIGHBOUR.frames(), strict=True) for h, p in pair]
    queue = [(key, parts) for key, parts in zip(order, evil, strict=False)]
    queue += [(10 * index + 5, parts) for index, parts in enumerate(good)]
    bench.give(*(parts for _, parts in sorted(queue, key=lambda entry: entry[0])))
    landed = bench.receiver.counters.get("frames", 0)
    assert bench.rejections().total() + landed <= bench.num_given
    if not any(claims(parts, NEIGHBOUR) for parts in evil):
        assert bench.is_delivered(NEIGHBOUR)
    if not any(claims(parts, VICTIM) for parts in evil):
        assert bench.is_delivered(VICTIM)
    bench.check()
    bench.check_aftermath()


EVIL = st.lists(mutated(), min_size=4, max_size=8)
ORDER = st.lists(st.integers(0, 90), min_size=8, max_size=8)


@given(EVIL, ORDER)
@settings(max_examples=60)
def test_generated_frames_disturb_nobody(evil: list[Parts], order: list[int]) -> None:
    check_generated(evil, order)


@pytest.mark.broad
def test_thousands_of_generated_frames_disturb_nobody() -> None:
    num_frames = 0

    @given(EVIL, ORDER)
    @settings(max_examples=500)
    def check_many(evil: list[Parts], order: list[int]) -> None:
        nonlocal num_frames
        num_frames += len(evil)
        check_generated(evil, order)

    check_many()
    assert num_frames >= 2000
