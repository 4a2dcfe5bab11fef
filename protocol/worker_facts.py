"""What a worker tells of itself: its pages and load, how long its requests take, what it has cached, its draft."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import FailFast, Field

from protocol.message import Count, Flag, Message, Number, Positive, Seconds, Text, WorkerId
from protocol.prefixes import HASH_BYTES


@dataclass(frozen=True)
class KvPages(Message):
    """The page ledger: total = free + cached + owned + reserved + quarantined. Page 0, the padding, is not counted."""

    total: Count
    free: Count
    cached: Count = 0
    owned: Count = 0
    reserved: Count = 0
    quarantined: Count = 0


@dataclass(frozen=True)
class DraftInfo(Message):
    """The draft that a worker has, as its settings name it."""

    algorithm: Text
    folder: Text
    num_steps: Positive  # tokens that it proposes at most


# upper edges, inclusive, of the buckets of TimeSpread, in seconds
TIME_EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BucketCounts = Annotated[tuple[Count, ...], Field(min_length=len(TIME_EDGES_S) + 1, max_length=len(TIME_EDGES_S) + 1)]


@dataclass(frozen=True)
class TimeSpread(Message):
    """How long one phase of a worker's requests took, since the worker's start."""

    counts: BucketCounts  # requests in each bucket; the last bucket is above all edges
    seconds: Seconds  # of all requests together


@dataclass(frozen=True)
class WorkerStats(Message):
    """A worker's load, sent with every heartbeat."""

    kv_pages: KvPages
    running: Count  # choices being decoded, or prompts being prefilled
    waiting: Count  # requests that wait for pages, credit or their turn, and choices in host memory
    queued_prompt_tokens: Count = 0
    num_launches: Count = 0
    counters: dict[Text, Number] = field(default_factory=dict)  # for /metrics: monotonic totals, and gauges named *_now
    times: dict[Text, TimeSpread] = field(default_factory=dict)  # by phase, see worker/requests.py
    transfer: dict[Text, Text] = field(default_factory=dict)  # at decode: the transfer backend, by prefill worker
    host_pages: KvPages = KvPages(0, 0)  # for KV of preempted choices


@dataclass(frozen=True)
class Stamp(Message):
    """One moment of a request: `name` from docs/structure.md, `at` in seconds of this host's monotonic clock."""

    name: Text
    at: Number
    worker_id: WorkerId


Stamps = Annotated[tuple[Stamp, ...], FailFast()]

MAX_CACHE_NEWS = 2048  # hashes in one message
PrefixHash = Annotated[bytes, Field(strict=True, min_length=HASH_BYTES, max_length=HASH_BYTES)]
PrefixHashes = Annotated[tuple[PrefixHash, ...], Field(max_length=MAX_CACHE_NEWS), FailFast()]


@dataclass(frozen=True)
class CacheNews(Message):
    """How the prefixes that a worker has cached have changed, as the hashes of protocol/prefixes.py. `flushed`: all
    those told before are gone."""

    flushed: Flag = False
    added: PrefixHashes = ()
    dropped: PrefixHashes = ()
