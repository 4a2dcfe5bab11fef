"""A client leaves at every moment of a request's life: nothing stays owned, and nobody else's tokens change."""

import threading

import pytest

from model.inputs import ModelInput
from protocol.messages_gateway import CancelRequest
from tests.cluster import Cluster
from tests.decode.driving import (
    VOCAB,
    Phase,
    Recorder,
    decode_phase,
    drive_to,
    expect_exact,
    expect_prefix,
    expect_rest,
    greedy,
    job_phase,
    make_cluster,
    prompt_of,
    slow_network,
)
from tests.doubles.hash_model import FakeRunner

# DELIVERED lasts for part of one step of either worker: nothing can arrive in it.
STATES = [
    Phase.RESERVING,
    Phase.REQUESTED,
    Phase.RECEIVING,
    Phase.RUNNING,
    Phase.WAITING,
    Phase.COMPUTING,
    Phase.SENDING,
]
PARAMS = greedy(15)
VICTIM = prompt_of("victim", 61)


def with_company(cluster: Cluster, n: int = 1) -> list[str]:
    """The victim between two others."""
    cluster.assign("before", prompt_of("before", 9), PARAMS)
    cluster.assign("victim", VICTIM, PARAMS, n)
    cluster.assign("after", prompt_of("after", 30), PARAMS, 2)
    return ["before", "after"]


def expect_company(cluster: Cluster) -> None:
    expect_exact(cluster, "before", prompt_of("before", 9), PARAMS)
    expect_exact(cluster, "after", prompt_of("after", 30), PARAMS, 2)
    assert not cluster.failures


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("state", STATES, ids=str)
def test_cancel_in_every_state(state: Phase, n: int, overlap: bool) -> None:
    cluster = make_cluster(overlap=overlap, network=slow_network())
    record = Recorder(cluster)
    with_company(cluster, n)
    drive_to(cluster, "victim", state)
    record.start()
    cluster.cancel("victim")
    assert decode_phase(cluster, "victim") is None
    cluster.cancel("victim")  # again: nothing
    cluster.run()
    late = record.of("victim")
    assert [piece for piece in late if piece[0] == "tokens"] == []
    # Prefill may have drawn its first tokens before the cancel reached it, once.
    assert late in ([], [("first", choice, 0) for choice in range(n)])
    for choice in range(n):
        expect_prefix(cluster, "victim", VICTIM, PARAMS, choice)
    expect_company(cluster)
    expect_rest(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize("state", STATES, ids=str)
def test_cancel_of_one_choice_in_every_state(state: Phase, choice: int) -> None:
    cluster = make_cluster(network=slow_network())
    record = Recorder(cluster)
    with_company(cluster, 3)
    drive_to(cluster, "victim", state)
    record.start()
    cluster.cancel("victim", choice)
    cluster.cancel("victim", choice)
    cluster.run()
    assert [piece for piece in record.of("victim", choice) if piece[0] == "tokens"] == []
    expect_prefix(cluster, "victim", VICTIM, PARAMS, choice)
    tokens = {c: cluster.answers["victim", c] for c in range(3) if c != choice}
    expected = FakeRunner(vocab_size=VOCAB).expected_tokens(VICTIM, 15)
    assert all((answer.ids, answer.finish) == (expected, "length") for answer in tokens.values())
    expect_company(cluster)
    expect_rest(cluster)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_cancel_of_the_choices_one_by_one(state: Phase) -> None:
    cluster = make_cluster(network=slow_network())
    with_company(cluster, 3)
    drive_to(cluster, "victim", state)
    for choice in (1, 0, 2):
        assert decode_phase(cluster, "victim") is not None
        cluster.cancel("victim", choice)
        cluster.step()
    assert decode_phase(cluster, "victim") is None
    cluster.run()
    expect_company(cluster)
    expect_rest(cluster)


def test_cancel_after_the_end_and_of_what_never_was() -> None:
    cluster = make_cluster(network=slow_network())
    with_company(cluster)
    cluster.run()
    cluster.cancel("victim")
    for choice in (-1, 3):
        next(iter(cluster.decodes.values())).on_gateway(CancelRequest("nobody", 0, choice))
    expect_company(cluster)
    expect_rest(cluster)


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
    record = Recorder(cluster)
    cluster.assign("victim", VICTIM, PARAMS)
    cluster.assign("next", prompt_of("next", 61), PARAMS)
    drive_to(cluster, "victim", Phase.RUNNING)
    (decode,) = cluster.decodes.values()
    gate.open.clear()
    while not (gate.waiting.is_set() and len(decode.planner.in_flight) == (2 if overlap else 1)):
        cluster.step()
    record.start()
    cluster.cancel("victim")
    assert decode.planner.book.pages.counts().quarantined > 0  # the launch in flight still writes there
    for _ in range(5):
        cluster.step()
    assert decode_phase(cluster, "next") is Phase.RESERVING
    gate.open.set()
    cluster.run()
    assert record.of("victim") == []
    expect_exact(cluster, "next", prompt_of("next", 61), PARAMS)
    expect_rest(cluster)


def test_every_job_state_is_seen_beside_its_decode_states() -> None:
    cluster = make_cluster(network=slow_network())
    cluster.assign("r", VICTIM, PARAMS)
    seen: list[tuple[Phase | None, Phase | None]] = []

    def note() -> bool:
        now = decode_phase(cluster, "r"), job_phase(cluster, "r")
        if not seen or seen[-1] != now:
            seen.append(now)
        return cluster.at_rest() and now == (None, None)

    cluster.run(note)
    assert {state for state, _ in seen} == {None, *(state for state in STATES if state.is_decodes)}
    assert {state for _, state in seen} == {None, *(state for state in STATES if not state.is_decodes)}
    expect_rest(cluster)


def test_a_request_that_ends_gives_its_job_credit_back_before_prefill_says_so() -> None:
    """The jobs that wait behind it need that credit; prefill's word takes a round trip."""
    cluster = make_cluster()
    cluster.assign("victim", VICTIM, PARAMS)
    drive_to(cluster, "victim", Phase.WAITING)
    (decode,) = cluster.decodes.values()
    (peer,) = decode._peers.by_instance.values()
    assert peer.tokens_queued == len(VICTIM)

    cluster.cancel("victim")
    assert peer.tokens_queued == 0
    cluster.run()
    expect_rest(cluster)
