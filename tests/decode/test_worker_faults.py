"""What breaks fails its own requests, clearly, and never makes a token wrong: raising forwards, lossy networks."""

import random

import pytest

from decode.requests import DOUBT_S, HANDOVER_DEADLINE_S
from model.inputs import ModelInput
from protocol.frame import HEADER_BYTES, unpack_header
from tests.decode.driving import (
    VOCAB,
    Driven,
    Phase,
    decode_phase,
    drive_to,
    job_phase,
    make_cluster,
    prompt_of,
)
from tests.doubles.backend_inproc import InprocNetwork, Packet
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.selecting import broad, first

pytestmark = pytest.mark.slow

POISON = VOCAB - 1  # no other prompt has it
NAMES = [f"r{index}" for index in range(8)]


def poisoned(name: str) -> list[int]:
    prompt = [token % POISON for token in prompt_of(name, 20)]
    prompt[11] = POISON
    return prompt


class RaiseOn:
    """Raises in every forward that computes the poisoned prompt token, or decodes at `position`."""

    def __init__(self, position: int | None = None) -> None:
        self.position = position
        self.count = 0

    def __call__(self, inp: ModelInput) -> None:
        num_prompt = sum(inp.extend_lens)
        if self.position is None:
            bad = bool((inp.input_ids_T[:num_prompt] == POISON).any())
        else:
            bad = bool((inp.positions_T[num_prompt:] == self.position).any())
        if bad:
            self.count += 1
            raise RuntimeError("broken kernel")


def expect_clear_end(cluster: Driven, failed: set[str]) -> None:
    for failure in cluster.failures.values():
        assert (failure.code, failure.message) == ("launch_failed", "RuntimeError: broken kernel")
    cluster.expect_end(failed=failed)


@pytest.mark.parametrize("topology", ["1P1D", pytest.param("2P2D", marks=pytest.mark.slow), "1U"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("chunk_size", [0, 7])
def test_a_forward_that_raises_on_a_prompt(topology: str, overlap: bool, chunk_size: int) -> None:
    """With whole prompts or small chunks a launch computes one prompt at a time, so only that one fails."""
    hook = RaiseOn()
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=hook)
    cluster = make_cluster(topology, runner, overlap=overlap, chunk_size=chunk_size)
    prompts = {name: [token % POISON for token in prompt_of(name, 21)] for name in NAMES}
    cluster.ask("bad", poisoned("bad"), n=2)
    for name in NAMES[:4]:
        cluster.ask(name, prompts[name], n=2)
    cluster.run()
    # Rows that decode beside the poisoned prompt fail with it; later requests do not.
    failed = set(cluster.failures) if topology == "1U" else {"bad"}
    assert "bad" in failed and hook.count == 1
    for name in NAMES[4:]:
        cluster.ask(name, prompts[name], n=2)
    cluster.run()
    expect_clear_end(cluster, failed)


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("ahead", [0, 10, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 5))])
def test_a_forward_that_raises_while_decoding(topology: str, overlap: bool, ahead: int) -> None:
    """The launch at which `bad` is decoding its output number `ahead + 1` raises."""
    hook = RaiseOn(position=100 + ahead)
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=hook)
    cluster = make_cluster(topology, runner, overlap=overlap)
    for name in (*NAMES[:3], "bad", *NAMES[3:]):
        cluster.ask(name, 100 if name == "bad" else 9, n=2 if name == "bad" else 1)
    cluster.run()
    failed = set(cluster.failures)
    assert "bad" in failed and hook.count == 1
    cluster.ask("later", 30)
    cluster.run()
    expect_clear_end(cluster, failed)


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


@pytest.mark.parametrize("index", [0, 3, 8])
@pytest.mark.parametrize("offset", [HEADER_BYTES, HEADER_BYTES + 5])
def test_a_corrupted_payload_fails_the_request_at_once(index: int, offset: int) -> None:
    cluster = lossy(Once(index, "corrupt", offset))
    cluster.run()
    (name,) = cluster.failures
    assert cluster.failures[name].message.startswith("KV transfer failed: frame")
    assert cluster.failures[name].code == "kv_not_delivered"
    cluster.expect_end(failed=[name])


@pytest.mark.parametrize("offset", range(0, HEADER_BYTES, 7))
def test_a_corrupted_header_never_makes_a_wrong_token(offset: int) -> None:
    cluster = lossy(Once(4, "corrupt", offset))
    cluster.run_past_deadlines(HANDOVER_DEADLINE_S + 1)
    (name,) = cluster.failures
    cluster.expect_end(failed=[name], lossy=True)


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


@pytest.mark.parametrize("fault", ["twice", "late"])
@pytest.mark.parametrize("index", range(0, 12, 3))
def test_what_comes_twice_or_late_changes_nothing(fault: str, index: int) -> None:
    cluster = lossy(Once(index, fault))
    cluster.run()
    cluster.expect_end()


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
