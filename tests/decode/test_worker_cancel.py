"""A client leaves at every moment of a request's life: nothing stays owned, and nobody else's tokens change."""

import threading

import pytest

from decode.requests import DecodeState
from model.inputs import ModelInput
from protocol.messages_gateway import CancelRequest
from tests.decode.driving import (
    VOCAB,
    Driven,
    Phase,
    Recorder,
    decode_phase,
    drive_to,
    greedy,
    job_phase,
    make_cluster,
    slow_network,
)
from tests.doubles.hash_model import FakeRunner

STATES = [phase for phase in Phase if phase is not Phase.DELIVERED]  # nothing can arrive in it: it is part of one step
PARAMS = greedy(15)


def with_company(n: int, state: Phase | None = None, overlap: bool = True) -> Driven:
    """A victim between two others, driven to `state`."""
    cluster = make_cluster(overlap=overlap, network=slow_network())
    for name, length, num_choices in (("before", 9, 1), ("victim", 61, n), ("after", 30, 2)):
        cluster.ask(name, length, PARAMS, num_choices)
    if state is not None:
        drive_to(cluster, "victim", state)
    return cluster


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("state", STATES, ids=str)
def test_cancel_in_every_state(state: Phase, n: int, overlap: bool) -> None:
    cluster = with_company(n, state, overlap)
    record = Recorder(cluster)
    held = cluster.decode.served.by_key.get(("victim", 0))
    cluster.cancel("victim")
    assert decode_phase(cluster, "victim") is None
    cluster.cancel("victim")  # again: nothing
    cluster.run()
    # What waits for its KV on the device reads the state: a request that has ended does not decode.
    assert held is not None and held.state is DecodeState.CANCELLED
    # Prefill may have drawn its first tokens before the cancel reached it, once.
    assert record.of("victim") in ([], [("first", choice, 0) for choice in range(n)])
    cluster.expect_end("victim")


@pytest.mark.slow
@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize("state", STATES, ids=str)
def test_cancel_of_one_choice_in_every_state(state: Phase, choice: int) -> None:
    cluster = with_company(3, state)
    record = Recorder(cluster)
    cluster.cancel("victim", choice)
    cluster.cancel("victim", choice)
    cluster.run()
    assert [piece for piece in record.of("victim", choice) if piece[0] == "tokens"] == []
    cluster.expect_end(("victim", choice))


@pytest.mark.parametrize("state", STATES, ids=str)
def test_cancel_of_the_choices_one_by_one(state: Phase) -> None:
    cluster = with_company(3, state)
    for choice in (1, 0, 2):
        assert decode_phase(cluster, "victim") is not None
        cluster.cancel("victim", choice)
        cluster.step()
    assert decode_phase(cluster, "victim") is None
    cluster.run()
    cluster.expect_end("victim")


def test_cancel_after_the_end_and_of_what_never_was() -> None:
    cluster = with_company(1)
    cluster.run()
    cluster.cancel("victim")
    for choice in (-1, 3):
        cluster.decode.on_gateway(CancelRequest("nobody", 0, choice))
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
        cluster.ask(name, 61, PARAMS)
    drive_to(cluster, "victim", Phase.RUNNING)
    planner = cluster.decode.planner
    gate.open.clear()
    while not (gate.waiting.is_set() and len(planner.in_flight) == (2 if overlap else 1)):
        cluster.step()
    record = Recorder(cluster)
    cluster.cancel("victim")
    assert planner.book.pages.counts().quarantined > 0  # the launch in flight still writes there
    cluster.steps(5)
    assert decode_phase(cluster, "next") is Phase.RESERVING
    gate.open.set()
    cluster.run()
    assert record.of("victim") == []
    cluster.expect_end("victim")


def test_every_job_state_is_seen_beside_its_decode_states() -> None:
    cluster = make_cluster(network=slow_network())
    cluster.ask("r", 61, PARAMS)
    seen: set[tuple[Phase | None, Phase | None]] = set()

    def note() -> bool:
        now = decode_phase(cluster, "r"), job_phase(cluster, "r")
        seen.add(now)
        return cluster.at_rest() and now == (None, None)

    cluster.run(note)
    assert {state for state, _ in seen} == {None, *(state for state in STATES if state.is_decodes)}
    assert {state for _, state in seen} == {None, *(state for state in STATES if not state.is_decodes)}
    cluster.expect_end()


def test_a_request_that_ends_gives_its_job_credit_back_before_prefill_says_so() -> None:
    """The jobs that wait behind it need that credit; prefill's word takes a round trip."""
    cluster = make_cluster()
    cluster.ask("victim", 61, PARAMS)
    drive_to(cluster, "victim", Phase.WAITING)
    (peer,) = cluster.decode._peers.by_instance.values()
    assert peer.tokens_queued == 61

    cluster.cancel("victim")
    assert peer.tokens_queued == 0
    cluster.run()
    cluster.expect_end("victim")
