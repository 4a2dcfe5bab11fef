"""Traffic over whole deployments with the model that hashes the KV it reads: any stale, missing or mixed-up page shows.

Pools are tight, so requests queue for pages, rows and credit; some leave at random moments, whole or by one choice.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from protocol.kv_layout import pages_for_choices
from protocol.messages_gateway import FirstToken, SamplingParams, ToGateway, Tokens, finish_reason
from tests.cluster import Cluster
from tests.doubles.hash_model import FakeRunner
from tests.selecting import first

pytestmark = pytest.mark.slow

TOPOLOGIES = ("1P1D", "2P2D", "1P2D", "2P1D", "1U", "2U")
MAX_PROMPT, MAX_TOKENS, MAX_N = 90, 24, 3
RUNNER = FakeRunner(vocab_size=211, head_dim=2, context_length=MAX_PROMPT + MAX_TOKENS)


@dataclass(frozen=True)
class Cancel:
    """A client leaves `steps` turns after it came and once `tokens` tokens are there; choice -1 is all of them."""

    choice: int
    steps: int
    tokens: int


@dataclass(frozen=True)
class Arrival:
    """One request of the traffic."""

    name: str
    prompt: list[int]
    sampling: SamplingParams
    n: int
    pause: int  # turns since the arrival before
    cancels: tuple[Cancel, ...]


@dataclass
class Traffic:
    """Runs arrivals through a cluster and counts what the gateway would see."""

    cluster: Cluster
    arrivals: list[Arrival]
    finishes: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # (message, request, choice)
    left: dict[str, set[int]] = field(default_factory=dict)  # choices cancelled before their end was known

    def run(self) -> None:
        """To the end of the last request."""
        self.cluster.on_message = self._count
        coming = list(reversed(self.arrivals))
        leaving: list[tuple[int, Arrival, Cancel]] = []
        turn, next_turn, idle = 0, 0, 0
        while coming or leaving or not self.cluster.at_rest():
            while coming and next_turn <= turn:
                arrival = coming.pop()
                self.cluster.assign(arrival.name, arrival.prompt, arrival.sampling, arrival.n)
                leaving.extend((turn + cancel.steps, arrival, cancel) for cancel in arrival.cancels)
                next_turn = turn + (coming[-1].pause if coming else 0)
            leaving = [leaver for leaver in leaving if not self._cancel_if_due(turn, *leaver)]
            idle = 0 if self.cluster.turn() else idle + 1
            if idle:
                self._wait_for_a_launch()
            assert idle < 20_000, "the cluster hangs"
            turn += 1
        while self.cluster.turn():  # what has ended leaves the running batch when the next is chosen
            pass

    def _wait_for_a_launch(self) -> None:
        for worker in self.cluster.workers:
            launches = self.cluster.executor(worker).launches
            if launches and (event := launches[0].copy_done) is not None:
                event.synchronize()
                return

    def _cancel_if_due(self, turn: int, due: int, arrival: Arrival, cancel: Cancel) -> bool:
        left = self.left.setdefault(arrival.name, set())
        choices = range(arrival.n) if cancel.choice < 0 else (cancel.choice,)
        answers = {choice: self.cluster.answers[arrival.name, choice] for choice in choices}
        going_on = {choice for choice, answer in answers.items() if not answer.finish} - left
        if not going_on:
            return True
        if turn < due or max(len(answers[choice].tokens) for choice in going_on) < cancel.tokens:
            return False
        left |= going_on
        self.cluster.cancel(arrival.name, cancel.choice)
        return True

    def _count(self, message: ToGateway) -> None:
        if isinstance(message, FirstToken | Tokens):
            for piece in message.choices:
                if piece.finish:
                    self.finishes[type(message).__name__, piece.request_id, piece.choice] += 1

    def check(self) -> None:
        """Every token right, no gap, one finish, nothing held."""
        assert not self.cluster.failures
        for arrival in self.arrivals:
            expected = RUNNER.expected_tokens(arrival.prompt, arrival.sampling.max_tokens)
            ends = (finish_reason(arrival.sampling, i + 1, token) for i, token in enumerate(expected))
            length, reason = next((i + 1, end) for i, end in enumerate(ends) if end is not None)
            for choice in range(arrival.n):
                answer = self.cluster.answers[arrival.name, choice]
                where = f"{arrival.name}, choice {choice}"
                if choice in self.left.get(arrival.name, ()) and not answer.finish:
                    assert answer.ids == expected[:length][: len(answer.ids)], where
                else:
                    assert answer.ids == expected[:length], where
                    assert answer.finish == reason, where
        assert set(self.finishes.values()) <= {1}
        self._check_ledger()

    def _check_ledger(self) -> None:
        self.cluster.check()
        for worker in self.cluster.workers:
            stats = worker.stats()
            assert (stats.running, stats.waiting, stats.queued_prompt_tokens) == (0, 0, 0)
            assert stats.kv_pages.free == stats.kv_pages.total
            assert not worker.busy
        for decode in self.cluster.decodes.values():
            for instance in self.cluster.prefills:
                if (peer := decode._peers.by_instance.get(instance)) is not None:
                    assert not peer.queued, "job credit is lost"


def draw_arrival(rng: random.Random, index: int, max_pause: int) -> Arrival:
    n = rng.choice((1, 1, 1, 2, MAX_N))
    prompt = [rng.randrange(RUNNER.vocab_size) for _ in range(rng.choice((1, 16, 32, rng.randint(1, MAX_PROMPT))))]
    max_tokens = rng.choice((1, 2, rng.randint(1, MAX_TOKENS), MAX_TOKENS))
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.choice((0, 0, rng.randint(0, max_tokens))),
        temperature=rng.choice((0.0, 1.0)),  # the other tokens' probability is e^-100
        seed=rng.getrandbits(63),
    )
    if sampling.min_tokens == 0 and rng.random() < 0.3:  # ends early at a stop token; where, is known to nobody before
        stops = rng.sample(range(RUNNER.vocab_size), RUNNER.vocab_size // 12)
        sampling = SamplingParams(**{**vars(sampling), "stop_token_ids": tuple(stops)})
    cancels = []
    if rng.random() < 0.4:
        for _ in range(rng.choice((1, 1, 2))):
            choice = rng.choice((-1, rng.randrange(n)))
            cancels.append(Cancel(choice, rng.choice((0, 1, rng.randint(0, 300))), rng.choice((0, rng.randint(0, 20)))))
    return Arrival(f"r{index}", prompt, sampling, n, rng.randint(0, max_pause), tuple(cancels))


def check_random_traffic(rng: random.Random, num_requests: int, topology: str, page_size: int) -> Traffic:
    """A deployment with room for the largest request and little more."""
    largest = max(pages_for_choices(p, p + MAX_TOKENS - 1, MAX_N, page_size) for p in range(1, MAX_PROMPT + 1))
    cluster = Cluster(
        RUNNER,
        topology,
        overlap=rng.random() < 0.7,
        page_size=page_size,
        chunk_size=rng.choice((0, 1, 7, 32, 64)),
        num_pages=1 + largest + rng.choice((0, largest, 3 * largest)),
        max_requests=rng.choice((MAX_N, 8, 32)),
    )
    max_pause = rng.choice((0, 3, 30))
    arrivals = [draw_arrival(rng, index, max_pause) for index in range(num_requests)]
    traffic = Traffic(cluster, arrivals)
    try:
        traffic.run()
    finally:
        cluster.close()
    traffic.check()
    return traffic


@pytest.mark.parametrize("topology", first(3, TOPOLOGIES))
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_little_traffic(topology: str, page_size: int) -> None:
    traffic = check_random_traffic(random.Random(f"{topology}{page_size}"), 40, topology, page_size)
    assert any(traffic.left.values()), "nobody left: the test has lost its point"


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, range(6), num_broad=0))
def test_five_hundred_requests(seed: int) -> None:
    check_five_hundred(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6, 60))
def test_five_hundred_requests_again(seed: int) -> None:
    check_five_hundred(seed)


def check_five_hundred(seed: int) -> None:
    rng = random.Random(seed)
    traffic = check_random_traffic(rng, 500, TOPOLOGIES[seed % len(TOPOLOGIES)], rng.choice((1, 5, 16)))
    assert sum(map(bool, traffic.left.values())) > 50
