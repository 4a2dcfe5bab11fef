"""What breaks fails its own requests, clearly, and never makes a token wrong: raising forwards, lossy networks."""

import random

import pytest

from decode.requests import DOUBT_S, HANDOVER_DEADLINE_S
from protocol.frame import unpack_header
from tests.decode.driving import (
    Driven,
    Phase,
    decode_phase,
    drive_to,
    job_phase,
    make_cluster,
)
from tests.doubles.backend_inproc import InprocNetwork, Packet
from tests.doubles.clock import VirtualClock
from tests.selecting import broad, first

pytestmark = pytest.mark.slow


# ---- the network ----


class Once:
    """Does something to the frame number `index` (from 0), and nothing to the others."""

    def __init__(self, index: int, fault: str, offset: int = 0) -> None:
        self.index, self.fault, self.offset = index, fault, offset
        self.count = 0

    def __call__(self, packet: Packet) -> list[Packet]:
        self.count += 1
        if self.count - 1 != self.index:
            return [packet]
        if self.fault == "drop":
            return []
        if self.fault == "twice":
            return [packet, packet.copy()]
        if self.fault == "late":
            return [packet.delayed(9)]
        return [packet.corrupted(self.offset)]


class Place:
    """Damages the header of the second KV frame, or of the last frame, at `offset`."""

    def __init__(self, which: str, offset: int) -> None:
        self.which, self.offset = which, offset
        self.count = 0
        self.is_done = False

    def __call__(self, packet: Packet) -> list[Packet]:
        self.count += 1
        is_last = unpack_header(packet.parts[0]).is_last
        if is_last if self.which == "last" else self.count == 2:
            self.is_done = True
            return [packet.corrupted(self.offset)]
        return [packet]


def lossy(fault: Once) -> Driven:
    cluster = make_cluster(network=InprocNetwork(fault), clock=VirtualClock())
    cluster.ask("r", 30, n=2)
    cluster.ask("other", 9)
    return cluster


@pytest.mark.parametrize("which", ["KV", "last"])
@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24])  # magic, version, sender, reservation, attempt
def test_where_frames_keep_their_order_one_that_nobody_can_place_is_missed_at_once(which: str, offset: int) -> None:
    fault, clock = Place(which, offset), VirtualClock()
    cluster = make_cluster(network=InprocNetwork(fault, is_ordered=True), clock=clock)
    cluster.ask("r", 30)
    cluster.run_past_deadlines(DOUBT_S / 2)
    assert fault.is_done and clock.now() <= 3 * DOUBT_S
    assert cluster.failures["r"].code == "kv_not_delivered"
    assert ("frames were announced" if which == "KV" else "one was damaged") in cluster.failures["r"].message
    cluster.expect_end(failed=["r"], lossy=True)


def test_a_dropped_frame_ends_at_the_deadline_and_not_before() -> None:
    cluster = lossy(Once(2, "drop"))
    cluster.run(lambda: bool(cluster.answers["other", 0].finish) and len(cluster.first_tokens) == 3)
    (name,) = {"r", "other"} - {name for name, choice in cluster.answers if cluster.answers[name, choice].finish}
    cluster.clock.advance(HANDOVER_DEADLINE_S - 1)
    cluster.steps(50)
    assert not cluster.failures and decode_phase(cluster, name) is Phase.RECEIVING
    assert job_phase(cluster, name) is not None
    cluster.clock.advance(1.5)
    cluster.run()
    assert cluster.failures[name].code == "kv_not_delivered"
    assert cluster.failures[name].message == "no KV from prefill-0 in 120 s"
    cluster.expect_end(failed=[name], lossy=True)


class Storm:
    """Drops, doubles, delays and damages frames at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __call__(self, packet: Packet) -> list[Packet]:
        what = self.rng.random()
        if what < 0.02:
            return []
        if what < 0.12:
            return [packet, packet.copy().delayed(self.rng.randrange(4))]
        if what < 0.25:
            return [packet.delayed(self.rng.randrange(6))]
        if what < 0.27:
            size = sum(len(part) for part in packet.parts)
            return [packet.corrupted(self.rng.randrange(size), 1 << self.rng.randrange(8))]
        return [packet]


@pytest.mark.parametrize("topology", ["1P1D", "2P2D"])
@pytest.mark.parametrize("overlap", [True, broad(False)])
@pytest.mark.parametrize("seed", first(1, [1, 2, 3]))
def test_a_storm_with_cancels(topology: str, overlap: bool, seed: int) -> None:
    rng, clock = random.Random(f"{topology}{overlap}{seed}"), VirtualClock()
    cluster = make_cluster(topology, overlap=overlap, network=InprocNetwork(Storm(rng)), clock=clock, num_pages=80)
    names = [f"s{index}" for index in range(20)]
    lengths = {name: rng.randint(1, 60) for name in names}
    cancelled = set(rng.sample(names, 5))
    for name in names:
        cluster.ask(name, lengths[name], n=rng.choice([1, 2]))
        for _ in range(rng.randrange(8)):
            cluster.turn()
            cluster.check()
    for name in cancelled:
        cluster.cancel(name)
    cluster.run_past_deadlines(HANDOVER_DEADLINE_S + 1)
    ended = {key for key, answer in cluster.answers.items() if answer.finish}
    assert ended and cluster.failures
    cut = {key for key in cluster.answers if key[0] in cancelled | set(cluster.failures)} - ended
    cluster.failures.clear()  # a choice may have ended before its request failed
    cluster.expect_end(*cut, lossy=True)


def test_the_deadline_begins_with_the_job_not_with_the_request() -> None:
    """Waiting for pages may take as long as it takes."""
    cluster = make_cluster(num_pages=24, clock=VirtualClock())
    cluster.ask("first", 61)
    cluster.ask("waits", 61)
    drive_to(cluster, "first", Phase.RUNNING)
    assert decode_phase(cluster, "waits") is Phase.RESERVING
    cluster.clock.advance(10 * HANDOVER_DEADLINE_S)
    cluster.run()
    cluster.expect_end()
