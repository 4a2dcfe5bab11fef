"""Measures a load: checks the endpoint, warms it up, runs the load as often as asked, and judges each run.

look at the endpoint --> probe --> per run: warm up, first pass (--verify), metrics, run, metrics, figures
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count, islice, repeat
from typing import Any, Protocol

from tokenizers import Tokenizer

from loadtest.drive.own_load import OwnLoad, OwnWatch, check_limits
from loadtest.drive.recount import recounted
from loadtest.drive.run import Plan, Progress, Run
from loadtest.drive.server import Found, Probed, check_turns, counted_between, metrics, probe
from loadtest.drive.talk import Asking, Listener, Talk
from loadtest.figures.figures import Figures, Window, figures_of
from loadtest.figures.record import Record
from loadtest.http_exchange import Connections, Server
from loadtest.work.arrivals import Arrivals, AtOnce
from loadtest.work.conversations import ONE, Conversation, RandomWork, with_cancels, with_think_time
from loadtest.work.lengths import Lengths
from runtime.clock import Clock

RUN_SEED = 1000  # between the seeds of runs: no run repeats the prompts of another
WARM_UP_SEED, INTRUDER_SEED = 0x5EED, 0x1047
DEFAULT_VOCAB = 512
DRAIN_S = 15.0  # for the answers to long prompts, once the load is over


class Work(Protocol):
    """What is asked."""

    def conversations(self, seed: int) -> Iterator[Conversation]:
        """The conversations, perhaps without end."""
        ...

    def words(self) -> str:
        """The work in one line."""
        ...


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the user has asked for."""

    work: Work
    arrivals: Arrivals
    max_concurrency: int | None = None
    num_conversations: int | None = None
    duration_s: float | None = None
    grace_s: float = 30.0
    warmup_s: float = 0.0
    cooldown_s: float = 0.0
    num_warmups: int = 0
    num_verified: int = 0
    cancel_share: float = 0.0
    think_s: float = 0.0
    intruder_rate: float = 0.0
    intruder_tokens: int = 1500
    slos: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    stops_when_saturated: bool = True

    @property
    def is_open(self) -> bool:
        """Whether arrivals do not wait for answers."""
        return not isinstance(self.arrivals, AtOnce)

    def words(self) -> str:
        """The load in one line."""
        limit = f", at most {self.max_concurrency} at a time" if self.max_concurrency else ""
        until = [f"{self.num_conversations:,} conversations"] if self.num_conversations else []
        until += [f"{self.duration_s:g} s"] if self.duration_s else []
        beside = f"; beside {self.intruder_rate:g} long prompts a second ({self.intruder_tokens:,} tokens)"
        return (
            f"{self.work.words()}; {self.arrivals.words()}{limit}; {' or '.join(until) or 'all of it'}"
            f"{beside if self.intruder_rate else ''}"
        )

    def conversations(self, seed: int) -> Iterator[Conversation]:
        """What is asked, with the clients that think and those that leave."""
        drawn = self.work.conversations(seed)
        drawn = with_think_time(drawn, self.think_s, seed) if self.think_s else drawn
        return with_cancels(drawn, self.cancel_share, seed) if self.cancel_share else drawn


@dataclass(frozen=True)
class Exactness:
    """How many answers were compared with those of the first pass, and how many were others."""

    num_compared: int
    num_wrong: int


@dataclass(frozen=True)
class Measured:
    """One run. `beside`: the long prompts, counted apart. `refusal` says why its figures are worth nothing, if so."""

    load: Load
    progress: Progress
    records: list[Record]
    window: Window
    figures: Figures
    beside: Figures | None  # of the long prompts
    beside_records: list[Record]
    own: OwnLoad
    refusal: str | None
    counted: Mapping[str, float]  # of /metrics
    exactness: Exactness | None

    @property
    def done(self) -> list[Record]:
        """The requests that were sent in the window and ended well."""
        return [record for record in self.records if record.is_done and self.window.has(record.sent_s)]


@dataclass(frozen=True)
class Endpoint:
    """A server that can be asked."""

    server: Server
    found: Found
    probed: Probed
    clock: Clock

    @property
    def asking(self) -> Asking:
        """How it is asked."""
        return self.probed.asking


async def prepared(server: Server, model: Found, asking: Asking, load: Load, clock: Clock) -> Endpoint:
    """Checks that the load can be sent: the system's limits, and a first request. ConfigError if not."""
    check_limits(load.max_concurrency)
    first = list(islice(load.work.conversations(load.seed), 64))
    [said] = {type(conversation.turns[0].said) for conversation in first}
    probed = await probe(asking, clock, "Hello" if said is str else (5, 6, 7))
    check_turns(probed, any(len(conversation.turns) > 1 for conversation in first))
    return Endpoint(server, model, probed, clock)


async def measure(
    endpoint: Endpoint, load: Load, tokenizer: Tokenizer | None, started: Callable[[Run], None]
) -> Measured:
    """One run of the load. `started` gets the run before it begins, to show it or to stop it."""
    clock = endpoint.clock
    await _warm_up(endpoint, load)
    reference = await _first_pass(endpoint, load)
    before = await metrics(endpoint.server, clock)

    keeps = bool(load.num_verified or tokenizer)
    with _connected(endpoint, keeps=keeps) as asking:
        run = Run(_plan(load, load.conversations(load.seed)), _begin(asking, clock), clock, keeps=keeps)
        started(run)
        watch = OwnWatch(clock)
        watching = asyncio.create_task(watch.run())
        intruding = Run(_intruders(load), _begin(asking, clock), clock)
        disturbing = asyncio.create_task(intruding.run()) if load.intruder_rate else None
        try:
            progress = await run.run()
            own = watch.load()
            if disturbing is not None:
                if progress.why:
                    intruding.stop(progress.why)
                intruding.send_no_more()
                await disturbing
        finally:
            for task in (watching, disturbing):
                if task is not None:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task

    after = await metrics(endpoint.server, clock)
    records = progress.records
    if tokenizer is not None:
        records = [recounted(*pair, tokenizer) for pair in zip(records, progress.heard, strict=True)]
    window = window_of(load, progress)
    figures = figures_of(records, window, load.slos)
    beside = figures_of(intruding.progress.records, window, {}) if load.intruder_rate else None
    return Measured(
        load, progress, records, window, figures, beside, intruding.progress.records, own, own.refusal(figures),
        counted_between(before, after),
        exactness_of(records, reference) if load.num_verified else None,
    )  # fmt: skip


def window_of(load: Load, progress: Progress) -> Window:
    """The measured part: what a duration bounds, else until the last answer; less warm-up and cool-down."""
    end_s = max((record.end_s for record in progress.records), default=progress.now_s)
    for limit in (load.duration_s, progress.stopped_s):
        end_s = min(end_s, limit) if limit is not None else end_s
    end_s = max(end_s - load.cooldown_s, load.warmup_s)
    # a hair wider, so that the last token is in it
    return Window(load.warmup_s, end_s + 1e-9)


def exactness_of(records: list[Record], reference: Mapping[tuple[int, int], int]) -> Exactness:
    """Compares the answers under load with those of the first pass."""
    compared = [
        (record.answer, reference[record.conversation, record.turn])
        for record in records
        if record.is_done and (record.conversation, record.turn) in reference
    ]
    return Exactness(len(compared), sum(answer != first for answer, first in compared))


def _plan(load: Load, conversations: Iterator[Conversation]) -> Plan:
    return Plan(
        load.arrivals.moments(load.seed), conversations, load.is_open, load.max_concurrency, load.num_conversations,
        load.duration_s, load.grace_s, load.stops_when_saturated,
    )  # fmt: skip


def _intruders(load: Load) -> Plan:
    """Long prompts of one output token, one after the other in equal distances, however late the earlier ones are."""
    as_text = isinstance(load.work, RandomWork) and load.work.as_text
    vocab = load.work.vocab if isinstance(load.work, RandomWork) else DEFAULT_VOCAB
    long = RandomWork(Lengths("fixed", load.intruder_tokens), ONE, vocab=vocab, as_text=as_text)
    moments = (number / (load.intruder_rate or 1.0) for number in count())
    seed = load.seed ^ INTRUDER_SEED
    return Plan(moments, long.conversations(seed), is_open=True, grace_s=DRAIN_S, stops_when_saturated=False)


def _begin(asking: Asking, clock: Clock) -> Any:
    def begin(start: float, number: int, listener: Listener) -> Talk:
        return Talk(asking, clock, start, number, listener)

    return begin


async def _warm_up(endpoint: Endpoint, load: Load) -> None:
    """Requests of the same kind with other prompts, which are counted nowhere."""
    if load.num_warmups:
        places = min(load.num_warmups, load.max_concurrency or load.num_warmups)
        await _all_of(endpoint, load.work.conversations(load.seed ^ WARM_UP_SEED), load.num_warmups, places)
        if load.intruder_rate:
            other = replace(load, seed=load.seed ^ WARM_UP_SEED)
            await _all_of(endpoint, _intruders(other).conversations, 1, 1)


async def _first_pass(endpoint: Endpoint, load: Load) -> dict[tuple[int, int], int]:
    """The answers to the first conversations, sent one at a time: by conversation and turn."""
    if not load.num_verified:
        return {}
    records = await _all_of(endpoint, load.work.conversations(load.seed), load.num_verified, 1, keeps=True)
    return {(record.conversation, record.turn): record.answer for record in records if record.is_done}


async def _all_of(
    endpoint: Endpoint, conversations: Iterator[Conversation], count: int, places: int, *, keeps: bool = False
) -> list[Record]:
    plan = Plan(repeat(0.0), conversations, is_open=False, max_concurrency=places, num_conversations=count)
    with _connected(endpoint, keeps=keeps) as asking:
        return (await Run(plan, _begin(asking, endpoint.clock), endpoint.clock).run()).records


@contextmanager
def _connected(endpoint: Endpoint, **changes: Any) -> Iterator[Asking]:
    """Asking by connections of its own, which are closed afterwards."""
    connections = Connections(endpoint.server, endpoint.clock)
    try:
        yield replace(endpoint.asking, connections=connections, **changes)
    finally:
        connections.close()
