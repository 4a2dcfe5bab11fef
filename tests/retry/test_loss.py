"""Whoever dies, and whenever: each client gets the very tokens of an undisturbed run, once and in order."""

from collections.abc import Callable, Iterator
from typing import get_args

import pytest

from decode.worker import DecodeWorker
from prefill.worker import PrefillWorker
from protocol.messages_gateway import RequestFailed, Tokens
from tests.cluster import Worker
from tests.decode.driving import VOCAB, Phase, greedy, phase_of, prompt_of, reference
from tests.doubles.hash_model import FakeRunner
from tests.retry.controlled import Controlled, Loss
from unified.worker import UnifiedWorker

pytestmark = pytest.mark.slow

NUM_TOKENS = 12
LENGTH = 45  # tokens of a prompt: several chunks, several pages, a partial one
PARAMS = greedy(NUM_TOKENS)
Make = Callable[..., Controlled]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Controlled] = []

    def new(topology: str, max_attempts: int = 3) -> Controlled:
        made.append(Controlled(FakeRunner(vocab_size=VOCAB, context_length=256), topology, max_attempts=max_attempts))
        return made[-1]

    yield new
    for cluster in made:
        cluster.close()


def expect_exact(cluster: Controlled, name: str, length: int = LENGTH) -> None:
    client = cluster.clients[name]
    tokens, finish = reference(prompt_of(name, length), PARAMS)
    assert client.error is None, client.error
    assert client.tokens == [tokens] * client.num_choices
    assert client.finish == [finish] * client.num_choices


# ---- phases: what a worker that is about to die is at ----


def decoding(states: set[Phase], outputs: range = range(NUM_TOKENS)) -> Callable[[Worker], bool]:
    def is_there(worker: Worker) -> bool:
        return isinstance(worker, DecodeWorker) and any(
            phase_of(request) in states and len(request.reqs[-1].outputs) in outputs
            for request in worker.served.by_key.values()
        )

    return is_there


def prefilling(state: Phase, computed: range = range(LENGTH + NUM_TOKENS)) -> Callable[[Worker], bool]:
    def is_there(worker: Worker) -> bool:
        return isinstance(worker, PrefillWorker) and any(
            phase_of(job) is state and job.prompt.num_computed in computed for job in worker.served.by_key.values()
        )

    return is_there


def running(computed: range, outputs: range) -> Callable[[Worker], bool]:
    def is_there(worker: Worker) -> bool:
        return isinstance(worker, UnifiedWorker) and any(
            request.reqs[0].num_computed in computed and len(request.reqs[0].outputs) in outputs
            for request in worker.served.by_key.values()
        )

    return is_there


def finishing(worker: Worker) -> bool:
    """It has drawn a last token, which nobody has heard of."""
    return not isinstance(worker, PrefillWorker) and any(
        isinstance(message, Tokens) and any(choice.finish for choice in message.choices)
        for message in worker.outbox.gateway
    )


DECODE_PHASES = {
    "reserving": decoding({Phase.RESERVING}),
    "requested": decoding({Phase.REQUESTED}),
    "receiving": decoding({Phase.RECEIVING}),
    "prebuilt": decoding({Phase.RUNNING}, range(1, 3)),  # the step that merges it may process one launch, too
    "decoding": decoding({Phase.RUNNING}, range(5, 6)),
    "finishing": finishing,
}
PREFILL_PHASES = {
    "waiting": prefilling(Phase.WAITING),
    "computing the first chunk": prefilling(Phase.COMPUTING, range(1, 8)),
    "computing the last chunk": prefilling(Phase.COMPUTING, range(LENGTH, LENGTH + 1)),
    "sending": prefilling(Phase.SENDING),
}
UNIFIED_PHASES = {
    "waiting": running(range(1), range(1)),
    "computing": running(range(7, LENGTH), range(1)),
    "decoding": running(range(LENGTH, 999), range(5, 6)),
    "finishing": finishing,
}
CASES = [
    *(("2P2D", "decode-1", phase, is_there) for phase, is_there in DECODE_PHASES.items()),
    *(("2P2D", "prefill-1", phase, is_there) for phase, is_there in PREFILL_PHASES.items()),
    *(("2U", "unified-1", phase, is_there) for phase, is_there in UNIFIED_PHASES.items()),
]


def kill_when(cluster: Controlled, worker_id: str, is_there: Callable[[Worker], bool], loss: Loss) -> list[str]:
    """Kills the worker when it is first there; the list tells what was killed."""
    killed: list[str] = []
    victim = cluster.named(worker_id)

    def watch() -> None:
        if not killed and is_there(victim):
            killed.append(worker_id)
            cluster.kill(victim, loss)

    cluster.watch = watch
    return killed


@pytest.mark.parametrize(
    ("loss", "n"),
    [("gone", 3), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("silent", 1), ("leaving", 3)))],
)
@pytest.mark.parametrize(
    ("topology", "victim", "is_there"),
    [(t, v, p) for t, v, _, p in CASES],
    ids=[f"{v} {name}" for _, v, name, _ in CASES],
)
def test_every_phase(
    topology: str, victim: str, is_there: Callable[[Worker], bool], loss: Loss, n: int, make: Make
) -> None:
    cluster = make(topology)
    killed = kill_when(cluster, victim, is_there, loss)
    for index in range(4):
        cluster.ask(f"r{index}", prompt_of(f"r{index}", LENGTH), PARAMS, n)
        cluster.watch()
    cluster.finish()
    assert killed == [victim] and cluster.num_retries >= 1
    for name in cluster.clients:
        expect_exact(cluster, name)
    assert victim not in {worker_id for worker_id, assign in cluster.assigns if assign.attempt > 0}


@pytest.mark.parametrize("loss", get_args(Loss))
@pytest.mark.parametrize("num_outputs", [1, 6])
def test_a_prefill_worker_that_dies_after_delivery_is_not_missed(loss: Loss, num_outputs: int, make: Make) -> None:
    cluster = make("1P1D")
    client = cluster.ask("r", prompt_of("r", LENGTH), PARAMS)
    cluster.run(lambda: len(client.tokens[0]) >= num_outputs and not cluster.prefills[100].served.by_key)
    assert len(client.tokens[0]) < NUM_TOKENS
    cluster.kill(cluster.prefills[100], loss)
    cluster.finish()
    assert cluster.num_retries == 0 and len(cluster.assigns) == 1
    expect_exact(cluster, "r")


def test_choices_with_outputs_go_on_one_by_one_and_cancelled_ones_do_not(make: Make) -> None:
    cluster = make("1P2D")
    client = cluster.ask("r", prompt_of("r", LENGTH), PARAMS, 4)
    record = cluster.control.dispatch.requests.find("r")
    assert record is not None
    cluster.run(lambda: all(len(tokens) >= 3 for tokens in client.tokens))
    cluster.control.dispatch.cancel("r", 2)
    had = [len(tokens) for tokens in client.tokens]
    [(first, _)] = cluster.assigns
    cluster.kill(cluster.named(first))
    told = [
        (assign.attempt, assign.first_choice, assign.num_choices, assign.num_replayed) for _, assign in cluster.assigns
    ]
    assert told[1:] == [(1, 0, 1, had[0]), (2, 1, 1, had[1]), (3, 3, 1, had[3])]
    cluster.run(lambda: all(client.finish[choice] is not None for choice in (0, 1, 3)) and cluster.at_rest())
    tokens, _ = reference(prompt_of("r", LENGTH), PARAMS)
    assert [client.tokens[choice] for choice in (0, 1, 3)] == [tokens] * 3
    assert client.tokens[2] == tokens[: had[2]]
    second = "decode-1" if first == "decode-0" else "decode-0"
    assert record.pairs == [f"prefill-0+{first}", *[f"prefill-0+{second}"] * 3]
    assert cluster.control.dispatch.loads == {} and len(cluster.control.dispatch.requests) == 0


@pytest.mark.parametrize("topology", ["2U", "1P2D"])
def test_neighbours_without_outputs_go_on_together_and_may_be_cancelled(topology: str, make: Make) -> None:
    cluster = make(topology)
    client = cluster.ask("r", prompt_of("r", LENGTH), PARAMS, 4)
    cluster.control.dispatch.cancel("r", 0)
    [(first, _)] = cluster.assigns
    cluster.kill(cluster.named(first))
    [_, (_, second)] = cluster.assigns
    assert (second.first_choice, second.num_choices, second.num_replayed) == (1, 3, 0)
    cluster.control.dispatch.cancel("r", 1)  # in whose pages a unified worker computes the prompt
    cluster.run(lambda: client.finish[2] is not None and client.finish[3] is not None and cluster.at_rest())
    tokens, _ = reference(prompt_of("r", LENGTH), PARAMS)
    assert client.tokens == [[], [], tokens, tokens] and cluster.control.dispatch.loads == {}
    cluster.check()


def test_the_last_attempt_fails_the_client_and_leaves_nothing(make: Make) -> None:
    cluster = make("1P4D")
    client = cluster.ask("r", prompt_of("r", LENGTH), PARAMS)
    other = cluster.ask("other", prompt_of("other", LENGTH), PARAMS)
    for count in (2, 4, 6):
        cluster.run(lambda count=count: len(client.tokens[0]) >= count)  # type: ignore[misc]
        worker_id = [worker_id for worker_id, assign in cluster.assigns if assign.request_id == "r"][-1]
        cluster.kill(cluster.named(worker_id))
    assert client.error is not None and client.error.code == "worker_lost"
    assert client.error.message.endswith("is lost (the last of 3 attempts)")
    tokens, _ = reference(prompt_of("r", LENGTH), PARAMS)
    assert 6 <= len(client.tokens[0]) < NUM_TOKENS and client.tokens[0] == tokens[: len(client.tokens[0])]
    cluster.finish()
    if other.error is None:
        expect_exact(cluster, "other")


@pytest.mark.parametrize("after_s", [0.0, 3.0])
def test_unpaired_requests_wait_for_a_restarted_worker(after_s: float, make: Make) -> None:
    cluster = make("1P1D")
    client = cluster.ask("r", prompt_of("r", LENGTH), PARAMS, 2)
    cluster.run(lambda: len(client.tokens[0]) >= 4)
    cluster.kill(cluster.decodes[200])
    assert cluster.control.membership.missing == "no decode worker is ready"
    cluster.wait(after_s)
    assert client.error is None and len(cluster.assigns) == 1
    cluster.add_decode("decode-0", 250)
    cluster.join(250)
    assert len(cluster.assigns) == 3, "both choices, at once"
    cluster.finish()
    expect_exact(cluster, "r")


def test_a_worker_that_failed_a_request_is_avoided_while_there_is_another(make: Make) -> None:
    cluster = make("2U")
    for name in ("r", "other"):
        cluster.ask(name, prompt_of(name, LENGTH), PARAMS)
    [first, second] = [worker_id for worker_id, _ in cluster.assigns]
    assert first != second, "they take turns, and the next one is the first's"
    for attempt in range(2):
        worker = cluster.assigns[-1][0] if attempt else first
        [key] = [key for key in cluster._keys.values() if key.worker_id == worker]
        cluster.say(key, RequestFailed("r", attempt, "unavailable", "it has no room"))
    assert [worker_id for worker_id, _ in cluster.assigns] == [first, second, second, cluster.assigns[-1][0]]
    cluster.run(lambda: cluster.clients["r"].is_done and cluster.clients["other"].is_done)
    expect_exact(cluster, "r")
    cluster.finish()


def test_a_request_whose_launch_failed_goes_elsewhere_once_and_then_ends(make: Make) -> None:
    cluster = make("3U", max_attempts=9)
    client, other = (cluster.ask(name, prompt_of(name, LENGTH), PARAMS, 2) for name in ("r", "other"))
    tried: list[str] = []
    for attempt in range(2):
        cluster.run(lambda: len(client.tokens[0]) > len(tried))  # choices with outputs go on one by one
        [worker_id] = [
            each for each, assign in cluster.assigns if (assign.request_id, assign.attempt) == ("r", attempt)
        ]
        tried.append(worker_id)
        [key] = [key for key in cluster._keys.values() if key.worker_id == worker_id]
        cluster.say(key, RequestFailed("r", attempt, "launch_failed", "broken kernel"))
    assert len(set(tried)) == 2, "the worker that failed it is avoided"
    assert client.error is not None and client.error.code == "launch_failed"
    assert client.error.message == "broken kernel (computing it failed 2 times)"
    assert cluster.control.dispatch.retries.counts["launch_failed"] == 2  # both choices, the first time
    cluster.run(lambda: other.is_done)
    expect_exact(cluster, "other")
    cluster.finish()
