"""A client leaves at every moment of a request's life: nothing stays owned, and nobody else's tokens change."""

import threading

import pytest

from decode.requests import DecodeRequest, DecodeState
from model.inputs import ModelInput
from protocol.messages_gateway import CancelRequest, Role
from tests.decode.driving import (
    PAIR,
    SEEN,
    VOCAB,
    Phase,
    Recorder,
    decode_phase,
    drive_to,
    driven,
    job_phase,
    make_cluster,
    phase_at,
    slow_network,
)
from tests.doubles.hash_model import FakeRunner


def takes_assign(phase: Phase) -> Role:
    """The role that hears of the client."""
    return Role.UNIFIED if phase.role is Role.UNIFIED else Role.DECODE


# Without overlap the first tokens are there before the next step: nothing is relayed.
WAYS = [(phase, overlap) for phase in SEEN for overlap in (True, False) if overlap or phase is not Phase.RELAYED]


@pytest.mark.parametrize("phase,overlap", WAYS, ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_cancel_in_every_state(phase: Phase, n: int, overlap: bool) -> None:
    cluster = driven(phase, of="victim", n=n, overlap=overlap)
    record, role = Recorder(cluster), takes_assign(phase)
    (worker,) = cluster.of_role(role)
    held = worker.served.by_key["victim", 0]
    cluster.cancel("victim")
    assert phase_at(role, cluster, "victim") is None
    cluster.cancel("victim")  # again: nothing
    cluster.run()
    # What waits for its KV on the device reads the state: a request that has ended does not decode.
    assert not isinstance(held, DecodeRequest) or held.state is DecodeState.CANCELLED
    # Prefill may have drawn its first tokens before the cancel reached it, once.
    firsts = [] if role is Role.UNIFIED else [("first", choice, 0) for choice in range(n)]
    assert record.of("victim") in ([], firsts)
    cluster.expect_end("victim")


@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize(
    "phase,overlap",
    [pytest.param(*way, marks=[pytest.mark.slow] * (way[0] in PAIR)) for way in WAYS if way[1] or way[0] not in PAIR],
    ids=str,
)
def test_cancel_of_one_choice_in_every_state(phase: Phase, overlap: bool, choice: int) -> None:
    cluster = driven(phase, of="victim", n=3, overlap=overlap)
    record = Recorder(cluster)
    cluster.cancel("victim", choice)
    cluster.cancel("victim", choice)
    cluster.run()
    assert [piece for piece in record.of("victim", choice) if piece[0] == "tokens"] == []
    cluster.expect_end(("victim", choice))


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_cancel_after_the_end_and_of_what_never_was(topology: str) -> None:
    cluster = make_cluster(topology)
    cluster.ask("victim", 61)
    cluster.run()
    cluster.cancel("victim")
    for choice in (-1, 3):
        for worker in cluster.workers:
            worker.on_gateway(CancelRequest("nobody", 0, choice))
    cluster.expect_end()


class Gate:
    """Holds back forwards that decode, while shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()

    def __call__(self, inp: ModelInput) -> None:
        if inp.num_decodes and not self.open.is_set():
            self.waiting.set()
            assert self.open.wait(60)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_late_result_of_a_cancelled_request_is_ignored_and_its_row_goes_on_to_the_next(overlap: bool) -> None:
    gate = Gate()
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=gate)
    # Pages and rows for one request at a time.
    cluster = make_cluster(runner=runner, overlap=overlap, max_requests=1, num_pages=24)
    for name in ("victim", "next"):
        cluster.ask(name, 61)
    drive_to(cluster, "victim", Phase.RUNNING)
    planner = cluster.decode.planner
    gate.open.clear()
    while not (gate.waiting.is_set() and len(planner.in_flight) == (2 if overlap else 1)):
        cluster.turn()
    record = Recorder(cluster)
    cluster.cancel("victim")
    assert planner.kv_manager.pages.counts().quarantined > 0  # the launch in flight still writes there
    cluster.steps(5)
    assert decode_phase(cluster, "next") is Phase.RESERVING
    gate.open.set()
    cluster.run()
    assert record.of("victim") == []
    cluster.expect_end("victim")


def test_every_job_state_is_seen_beside_its_decode_states() -> None:
    cluster = make_cluster(network=slow_network())
    cluster.ask("r", 61)
    seen: set[tuple[Phase | None, Phase | None]] = set()

    def note() -> bool:
        now = decode_phase(cluster, "r"), job_phase(cluster, "r")
        seen.add(now)
        return cluster.at_rest() and now == (None, None)

    cluster.run(note)
    assert {state for state, _ in seen} == {None, *(phase for phase in PAIR if phase.role is Role.DECODE)}
    assert {state for _, state in seen} == {None, *(phase for phase in PAIR if phase.role is Role.PREFILL)}
    cluster.expect_end()


def test_a_request_that_ends_gives_its_job_credit_back_before_prefill_says_so() -> None:
    """The jobs that wait behind it need that credit; prefill's word takes a round trip."""
    cluster = make_cluster()
    cluster.ask("victim", 61)
    drive_to(cluster, "victim", Phase.WAITING)
    (peer,) = cluster.decode._peers.by_instance.values()
    assert peer.tokens_queued == 61

    cluster.cancel("victim")
    assert peer.tokens_queued == 0
    cluster.run()
    cluster.expect_end("victim")
