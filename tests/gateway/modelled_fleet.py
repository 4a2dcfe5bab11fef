"""A gateway's own dispatch and pairing on a virtual clock, before workers that are modelled.

    client -> Dispatch -> prefill: line, launches, cache -> transfer -> decode -> client

A launch takes LAUNCH_S and TOKEN_S for each token; a prompt whose beginning another one computes waits for that.
Workers tell what they have cached with their heartbeats. Nothing depends on how fast the machine is.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from gateway.routing.dispatch import Dispatch
from gateway.routing.members import WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.requests import Delivery
from gateway.routing.retries import RetryRules
from gateway.words.prompt import Prompt
from protocol.errors import BatonError, KvNotDelivered, WorkerLost
from protocol.fingerprint import pack_weights
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import (
    Assign,
    ChoiceTokens,
    Heartbeat,
    Register,
    RequestFailed,
    Role,
    SamplingParams,
    ToWorker,
    WorkerAddress,
)
from protocol.prefixes import HASH_KEY_BYTES, STRIDE, packed, prefix_hashes
from protocol.worker_facts import CacheNews, KvPages, WorkerStats
from runtime.log import Refusals, get_log
from runtime.settings import Pairing
from scheduler.planning.chunks import plan_chunks
from tests.doubles.clock import VirtualClock

HASH_KEY = bytes(HASH_KEY_BYTES)
HEARTBEAT_S = 0.25
LAUNCH_S, TOKEN_S = 0.008, 0.000_032  # a launch of 250 tokens takes twice as long as an empty one
LAUNCH_TOKENS = 2048
TRANSFER_TOKEN_S, STEP_S = 0.000_004, 0.012
NUM_OUTPUTS = 16
POOL_TOKENS, ROWS = 262_144, 64
LAYOUT = KvLayout.uniform(num_layers=2, num_kv_heads=1, head_dim=4, page_size=16, dtype="float32")


def stats(pool: int) -> WorkerStats:
    """Of an empty worker with `pool` tokens of KV."""
    return WorkerStats(KvPages(pool // LAYOUT.page_size, pool // LAYOUT.page_size), 0, 0)


def registered(worker_id: str, instance: int, role: Role, pool: int = POOL_TOKENS) -> Register:
    """What such a worker says when it registers."""
    return Register(
        address=WorkerAddress(worker_id, instance),
        role=role,
        pid=1,
        host="host",
        layout=LAYOUT,
        fingerprint=pack_weights("model", {}),
        vocab_size=100_000,
        context_length=POOL_TOKENS,
        max_running_requests=ROWS,
        max_total_tokens=pool,
        stats=stats(pool),
        margin=512,
    )


@dataclass(eq=False)
class Asked:
    """One request, and what became of it."""

    prompt: Sequence[int]
    group: int  # of those that begin alike
    asked_s: float
    done: Callable[["Asked"], None]
    prefill: str = ""
    decode: str = ""
    instance: int = 0  # of its prefill worker
    started_s: float = -1.0  # its first launch begins
    computed_s: float = -1.0
    num_cached: int = 0

    @property
    def queue_s(self) -> float:
        """How long it waited at prefill."""
        return self.started_s - self.asked_s

    def on_tokens(self, delivery: Delivery) -> None:
        """The gateway's listener."""
        if delivery.finish is not None:
            self.done(self)

    def on_failed(self, error: BatonError) -> None:
        """No request may fail."""
        raise error


@dataclass(eq=False)
class Job:
    """A prompt at its prefill worker."""

    assign: Assign
    asked: Asked
    hashes: tuple[bytes, ...]
    left: int = 0  # tokens to compute

    def has_begun_alike(self, other: "Job", num_cached: int) -> bool:
        """Whether this prompt, once computed, saves `other` a quarter of what it would compute now."""
        end = (num_cached + (len(other.assign.prompt_ids) - num_cached) // 4) // STRIDE + 1
        return len(other.hashes) >= end and self.hashes[:end] == other.hashes[:end]


class Cache:
    """The prefixes that a worker has cached, the least recently used dropped first, and the news of them."""

    def __init__(self, num_tokens: int) -> None:
        self._most = num_tokens // STRIDE
        self._held: dict[bytes, None] = {}
        self._news: dict[bytes, bool] = {}

    def num_cached(self, hashes: Sequence[bytes], num_tokens: int) -> int:
        """How many tokens at the start of a prompt are held."""
        held = next((num for num, each in enumerate(hashes) if each not in self._held), len(hashes))
        return min(held * STRIDE, num_tokens - 1)

    def keep(self, hashes: Sequence[bytes]) -> None:
        """Adds a prompt, or touches it."""
        for each in reversed(hashes):  # the shortest prefix is dropped last
            if each in self._held:
                del self._held[each]
            else:
                self._news[each] = True
            self._held[each] = None
        while len(self._held) > self._most:
            oldest = next(iter(self._held))
            del self._held[oldest]
            self._news[oldest] = False

    def take_news(self) -> CacheNews:
        """What has changed since the last call."""
        news, self._news = self._news, {}
        added, dropped = (tuple(each for each, held in news.items() if held is wanted) for wanted in (True, False))
        return CacheNews(added=added, dropped=dropped)


class ModelledWorker:
    """A worker of the fleet. Only a prefill worker computes; a decode worker caches what it has decoded."""

    def __init__(self, fleet: "Fleet", worker_id: str, instance: int, role: Role, pool: int) -> None:
        self.key, self.role = WorkerKey(worker_id, instance), role
        self.cache = Cache(pool)
        self.is_alive = True
        self.line: deque[Job] = deque()
        self.computing: list[Job] = []
        self._fleet = fleet
        self._in_launch = False

    def take(self, job: Job) -> None:
        """A prefill worker gets a job."""
        self.line.append(job)
        self.launch()

    def launch(self) -> None:
        """Begins a launch unless one is running."""
        if self._in_launch or not self.is_alive:
            return
        self._admit()
        sizes = plan_chunks([job.left for job in self.computing], LAUNCH_TOKENS)
        if not any(sizes):
            return
        self._in_launch = True
        for job, size in zip(self.computing, sizes, strict=True):
            if size and job.asked.started_s < 0:
                job.asked.started_s = self._fleet.clock.now()
        self._fleet.after(LAUNCH_S + TOKEN_S * sum(sizes), lambda: self._computed(sizes))

    def _admit(self) -> None:
        """As _is_too_early() of worker/prompts.py: launches are full, or a prompt that begins alike is computed."""
        while self.line and sum(job.left for job in self.computing) < LAUNCH_TOKENS:
            job = self.line[0]
            length = len(job.assign.prompt_ids)
            num_cached = self.cache.num_cached(job.hashes, length)
            if any(each.has_begun_alike(job, num_cached) for each in self.computing):
                return
            self.computing.append(self.line.popleft())
            job.left, job.asked.num_cached = length - num_cached, num_cached

    def _computed(self, sizes: Sequence[int]) -> None:
        self._in_launch = False
        if not self.is_alive:
            return
        for job, size in zip(self.computing, sizes, strict=True):
            job.left -= size
        ended, self.computing = (
            [job for job in self.computing if bool(job.left) is going_on] for going_on in (False, True)
        )
        for job in ended:
            self.cache.keep(job.hashes)
            self._fleet.first_token(self.key, job)
        self.launch()


@dataclass
class Fleet:
    """A gateway with its workers. `asked`: all requests, in the order in which they came."""

    pairing: Pairing = "prefix_aware"
    num_prefill: int = 2
    num_decode: int = 2
    seed: int = 1
    pool: int = POOL_TOKENS
    clock: VirtualClock = field(default_factory=VirtualClock)
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workers: dict[str, ModelledWorker] = {}
        self.joined_s: dict[str, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._rng = Random(self.seed)
        self._numbers, self._instances = count(), count(1)
        self._jobs: dict[str, Job] = {}
        hash_key = HASH_KEY if self.pairing == "prefix_aware" else b""
        self.membership = Membership(7, hash_key=hash_key)
        rules = RetryRules(3, 60.0)
        self.dispatch = Dispatch(
            self.membership,
            self.clock,
            self.pairing,
            rules,
            self._send,
            self._lose,
            Refusals(get_log("gateway"), "refused"),
        )
        for role, num in ((Role.PREFILL, self.num_prefill), (Role.DECODE, self.num_decode)):
            for number in range(num):
                self.join(f"{role}-{number}", role)

    # ---- time ----

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Calls `act` when so much time has passed."""
        heapq.heappush(self._events, (self.clock.now() + seconds, next(self._numbers), act))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Lets time pass until `is_over`."""
        while not is_over():
            at, _, act = heapq.heappop(self._events)
            self.clock.advance(at - self.clock.now())
            act()

    # ---- workers ----

    def join(self, worker_id: str, role: Role) -> None:
        """A worker starts, with nothing cached, and serves."""
        worker = ModelledWorker(self, worker_id, next(self._instances), role, self.pool)
        self.workers[worker_id], self.joined_s[worker_id] = worker, self.clock.now()
        register = registered(worker_id, worker.key.instance, role, self.pool)
        assert self.membership.register(register, self.clock.now()).joined is not None
        self._beat(worker)

    def kill(self, worker_id: str, back_after_s: float) -> None:
        """A prefill worker dies and is started again. Its jobs fail at their decode workers."""
        worker = self.workers[worker_id]
        worker.is_alive = False
        jobs = [*worker.computing, *worker.line]
        self._lose(worker.key)
        for job in jobs:
            key = self.workers[job.asked.decode].key
            told = RequestFailed(job.assign.request_id, job.assign.attempt, KvNotDelivered.code, "prefill died")
            job.asked.started_s = -1.0
            self.dispatch.on_failed(key.identity, told)
        self.after(back_after_s, lambda: self.join(worker_id, worker.role))

    def _beat(self, worker: ModelledWorker) -> None:
        if not worker.is_alive:
            return
        news = worker.cache.take_news() if self.pairing == "prefix_aware" else CacheNews()
        beat = Heartbeat(worker.key.worker_id, worker.key.instance, stats(self.pool), cache=news)
        self.membership.heartbeat(beat, self.clock.now())
        self.after(HEARTBEAT_S, lambda: self._beat(worker))

    def _lose(self, key: WorkerKey) -> None:
        self.membership.give_up(key, "was killed")
        self.dispatch.lost(key, WorkerLost(f"worker {key.worker_id!r} was killed"))

    # ---- requests ----

    def ask(self, prompt: Sequence[int], group: int, done: Callable[[Asked], None]) -> None:
        """A client asks."""
        asked = Asked(prompt, group, self.clock.now(), done)
        self.asked.append(asked)
        name = f"r{len(self.asked)}"
        hashes = tuple(prefix_hashes(HASH_KEY, "", packed(prompt)))
        self._jobs[name] = Job(Assign(name, 0, (), SamplingParams(1), 1, None), asked, hashes)
        self.dispatch.assign(name, Prompt(tuple(prompt), SamplingParams(NUM_OUTPUTS), 1), asked)

    def _send(self, key: WorkerKey, message: ToWorker) -> bool:
        if isinstance(message, Assign):
            assert message.prefill is not None
            job = replace(self._jobs[message.request_id], assign=message)
            job.asked.prefill, job.asked.decode = message.prefill.worker_id, key.worker_id
            job.asked.instance = message.prefill.instance
            # the job reaches prefill after the gateway has booked it
            self.after(0.0, lambda: self.workers[job.asked.prefill].take(job))
        return True

    def first_token(self, key: WorkerKey, job: Job) -> None:
        """A prefill worker has computed a prompt."""
        job.asked.computed_s = self.clock.now()
        self._tell(key, job, 0, 1, "")
        step_s = STEP_S * self._rng.uniform(0.5, 1.5)  # else clients that ask at once would do so for ever
        seconds = TRANSFER_TOKEN_S * len(job.assign.prompt_ids) + step_s * (NUM_OUTPUTS - 1)
        self.after(seconds, lambda: self._decoded(job))

    def _decoded(self, job: Job) -> None:
        worker = self.workers[job.asked.decode]
        worker.cache.keep(job.hashes)
        self._tell(worker.key, job, 1, NUM_OUTPUTS - 1, "length")

    def _tell(self, key: WorkerKey, job: Job, seq: int, num: int, finish: str) -> None:
        assign = job.assign
        news = ChoiceTokens(assign.request_id, assign.attempt, 0, seq, (5,) * num, finish)
        self.dispatch.on_tokens(key.identity, news, ())
