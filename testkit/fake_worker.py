"""A worker that speaks the gateway's real messages over a real socket and makes its tokens up.

For tests it can send first tokens late, everything twice, out of order, several at once; stop in the middle; fail; fall
silent. For benchmarks of the gateway it keeps a steady pace: one Tokens message per step for all that run.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import zmq
import zmq.asyncio

from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.logprobs import Logprobs, PromptLogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import (
    TO_GATEWAY,
    TO_WORKER,
    Assign,
    CacheFlushed,
    CancelRequest,
    ChoiceTokens,
    FirstToken,
    FlushCache,
    Heartbeat,
    Preempted,
    PromptLogprobs,
    Register,
    RegisterAgain,
    RequestFailed,
    Role,
    ToGateway,
    Tokens,
    ToWorker,
    Welcome,
    WorkerAddress,
    finish_reason,
)
from protocol.messages_group import GroupPlace
from protocol.worker_facts import DraftInfo, KvPages, Stamp, WorkerStats
from runtime.session import Session, open_envelope

PATIENCE_S = 300.0  # for what takes moments; only a failure takes so long
LAYOUT = KvLayout.uniform(num_layers=2, num_kv_heads=1, head_dim=4, page_size=4, dtype="float32")
MODEL = Fingerprint("story")
STATS = WorkerStats(KvPages(total=256, free=250, owned=6), running=1, waiting=0, counters={"bytes_sent_total": 5.0})
_instances = itertools.count(1000)

Script = Callable[[Assign, int], Iterable[int]]
Step = tuple[ChoiceTokens | None, ...]  # what each choice of a request gets at once; None: it has ended


def letters(assign: Assign, choice: int) -> list[int]:
    """Tokens that depend on prompt and choice, within the ids of letters of the tests' vocabulary."""
    start = sum(assign.prompt_ids) + 7 * choice
    return [65 + (start + 5 * place) % 26 for place in range(assign.sampling.max_tokens)]


@dataclass(frozen=True)
class Behaviour:
    """How a fake worker misbehaves."""

    script: Script = letters
    burst: int = 1  # tokens in one message
    twice: bool = False
    reverse: bool = False  # the last message of a request first
    first_token_late: bool = False
    cached: int = 0  # prompt tokens that it says it had cached
    preempt_after: int | None = None  # tokens of a request's first attempt; then it is preempted
    stop_after: int | None = None  # tokens; then silence about this request
    fail_after: int | None = None
    fail_code: str = "internal_error"
    prompt_piece: int = 3  # tokens in one message of a prompt's log-probabilities
    prompt_late: bool = False  # these come behind the answer's tokens
    prompt_until: int | None = None  # a first attempt tells only the tokens before this position
    pause_s: float = 0.0
    after_step: Callable[[], Awaitable[None]] | None = None  # awaited behind each message with tokens; then requests
    # are served one after the other
    step_s: float | None = (
        None  # all requests decode together, a step each `step_s`; of the above, only pieces of prompts apply
    )


@dataclass
class FakeWorker:
    """One worker process. `prefill` is the fake that stands for the prefill worker of a decode worker."""

    role: Role
    endpoint: str
    worker_id: str
    behaviour: Behaviour = field(default_factory=Behaviour)
    prefill: "FakeWorker | None" = None
    max_total_tokens: int = 1024
    max_running_requests: int = 64
    context_length: int = 512
    vocab_size: int = 300
    fingerprint: Fingerprint = MODEL
    layout: KvLayout = LAYOUT
    stats: WorkerStats = STATS  # of the registration and the next heartbeats
    draft: DraftInfo | None = None
    graphs: str = ""
    place: GroupPlace | None = None
    instance: int = field(default_factory=lambda: next(_instances))
    on_assign: Callable[[Assign], None] = lambda _assign: None

    def __post_init__(self) -> None:
        self.received: list[ToWorker] = []
        self.welcomed = asyncio.Event()
        self.silent = False
        self.flushes = True
        self.loses: Callable[[ToGateway], bool] = lambda _message: False  # what is lost on the way
        self.num_lost = 0
        self._session = Session(1)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTING_ID, f"{self.worker_id}#{self.instance}".encode())
        self._socket.connect(self.endpoint)
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled: set[tuple[str, int, int]] = set()  # request, attempt, choice
        self._running: dict[str, Iterator[Step]] = {}  # with `step_s`: the rest of each request
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def address(self) -> WorkerAddress:
        return WorkerAddress(self.worker_id, self.instance, "tcp://127.0.0.1:1")

    @property
    def assigned(self) -> list[Assign]:
        return [message for message in self.received if isinstance(message, Assign)]

    @property
    def cancelled(self) -> list[CancelRequest]:
        return [message for message in self.received if isinstance(message, CancelRequest)]

    def registration(self) -> Register:
        return Register(
            self.address,
            self.role,
            4242,
            "localhost",
            self.layout,
            self.fingerprint,
            self.vocab_size,
            self.context_length,
            self.max_running_requests,
            self.max_total_tokens,
            self.stats,
            "" if self.role is Role.UNIFIED else "zmq",
            draft=self.draft,
            graphs=self.graphs,
            place=self.place,
        )

    async def start(self) -> "FakeWorker":
        """Registers and waits for the Welcome."""
        await self.send(self.registration())
        self._spawn(self._receive())
        self._spawn(self._beat())
        if self.behaviour.step_s is not None:
            self._spawn(self._decode_together(self.behaviour.step_s))
        async with asyncio.timeout(PATIENCE_S):
            await self.welcomed.wait()
        return self

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._socket.close(0)
        self._context.term()

    async def send(self, message: ToGateway) -> None:
        raw = self._session.seal(TO_GATEWAY.encode(message))
        if self.loses(message):
            self.num_lost += 1
        else:
            await self._socket.send(raw)

    async def send_raw(self, body: bytes) -> None:
        await self._socket.send(self._session.seal(body))

    async def until(self, happened: Callable[[], bool]) -> None:
        """Waits until `happened()`, looked at after each message from the gateway."""
        async with asyncio.timeout(PATIENCE_S):
            while not happened():
                self._news.clear()
                await self._news.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self) -> None:
        await self.welcomed.wait()  # the word of one who is not a member would be answered
        while True:
            await asyncio.sleep(0.2)
            if not self.silent:
                await self.send(Heartbeat(self.worker_id, self.instance, self.stats))

    async def _receive(self) -> None:
        while True:
            envelope = open_envelope(await self._socket.recv())
            if not self._session.accept(envelope):
                continue
            message = TO_WORKER.decode(envelope.body)
            self.received.append(message)
            if isinstance(message, RegisterAgain):
                self._session = Session(self._session.number + 1)
                await self.send(self.registration())
            elif isinstance(message, Welcome):
                self.welcomed.set()
            elif isinstance(message, Assign):
                self.on_assign(message)
                if self.behaviour.after_step is not None:
                    self._spawn(self._serve_in_turn(message))
                elif self.behaviour.step_s is None:
                    self._spawn(self._serve(message))
                else:
                    await self._join(message)
            elif isinstance(message, FlushCache):
                if self.flushes:
                    await self.send(CacheFlushed(message.number))
            elif isinstance(message, CancelRequest):
                choices = range(128) if message.choice < 0 else (message.choice,)
                self._cancelled |= {(message.request_id, message.attempt, choice) for choice in choices}
                if message.choice < 0:
                    self._running.pop(message.request_id, None)
            self._news.set()

    async def _serve_in_turn(self, assign: Assign) -> None:
        async with self._turn:
            await self._serve(assign)

    async def _serve(self, assign: Assign) -> None:
        """Answers one request: first tokens by the prefill fake, then everything by this one."""
        how = self.behaviour
        steps = list(self._steps(assign))
        await self._send_prompt(assign, is_late=False)
        if not how.first_token_late:
            await self._send_first(steps[0])
        for step in reversed(steps) if how.reverse else steps:
            going_on = [each for each in step if each is not None and not self._is_cancelled(each)]
            if how.fail_after is not None and going_on and going_on[0].seq >= how.fail_after:
                await self.send(RequestFailed(assign.request_id, assign.attempt, how.fail_code, "it was told to"))
                return
            if how.stop_after is not None and going_on and going_on[0].seq >= how.stop_after:
                return
            preempts = how.preempt_after is not None and not assign.attempt
            if preempts and going_on and going_on[0].seq >= (how.preempt_after or 0):
                for each in going_on:
                    await self.send(Preempted(assign.request_id, 0, each.choice))
                return
            if going_on:
                is_end = any(each.finish for each in going_on)
                stamps: dict[str, tuple[Stamp, ...]] = {}
                if is_end:
                    stamps[assign.request_id] = (Stamp("decode done", 0.7, self.worker_id),)
                is_start = how.cached and going_on[0].seq == assign.num_replayed
                cached = {assign.request_id: how.cached} if is_start else {}
                for _ in range(2 if how.twice else 1):
                    await self.send(Tokens(tuple(going_on), stamps, cached))
            await asyncio.sleep(how.pause_s)
            if how.after_step is not None:
                await how.after_step()
        if how.first_token_late:
            await self._send_first(steps[0])
        await self._send_prompt(assign, is_late=True)

    async def _send_prompt(self, assign: Assign, *, is_late: bool) -> None:
        """The log-probabilities that are asked for of the prompt, by the worker that computes it, if it is time."""
        if (asked := assign.prompt_logprobs) is None or is_late != self.behaviour.prompt_late:
            return
        sender, end = self.prefill or self, len(assign.prompt_ids) - assign.num_replayed
        if self.behaviour.prompt_until is not None and not assign.attempt:
            end = min(end, self.behaviour.prompt_until)
        for start in range(asked.start, end, self.behaviour.prompt_piece):
            piece = assign.prompt_ids[start : min(end, start + self.behaviour.prompt_piece)]
            scored = packed_scores(piece, start, asked)
            for _ in range(2 if self.behaviour.twice else 1):
                await sender.send(PromptLogprobs(assign.request_id, assign.attempt, start, scored))

    async def _join(self, assign: Assign) -> None:
        """The request decodes from the next step on. Its first token is sent at once."""
        steps = self._steps(assign)
        first = next(steps)
        await self._send_prompt(assign, is_late=False)
        self._running[assign.request_id] = itertools.chain([first], steps)
        await self._send_first(first)

    async def _decode_together(self, step_s: float) -> None:
        clock = asyncio.get_running_loop()
        due = clock.time()
        while True:
            due = max(due + step_s, clock.time())
            await asyncio.sleep(due - clock.time())
            news: list[ChoiceTokens] = []
            for request_id, steps in list(self._running.items()):
                step = next(steps, None)
                if step is None:
                    del self._running[request_id]
                else:
                    news += [each for each in step if each is not None]
            if news:
                await self.send(Tokens(tuple(news)))

    async def _send_first(self, step: Step) -> None:
        """The first token of each choice, by the prefill fake."""
        if self.prefill is not None:
            stamps = (Stamp("first token", 0.5, self.prefill.worker_id),)
            firsts = (_first_of(each) for each in step if each is not None)
            await self.prefill.send(FirstToken(tuple(firsts), stamps, self.behaviour.cached))

    def _is_cancelled(self, news: ChoiceTokens) -> bool:
        return (news.request_id, news.attempt, news.choice) in self._cancelled

    def _steps(self, assign: Assign) -> Iterator[Step]:
        choices = range(assign.first_choice, assign.first_choice + assign.num_choices)
        return itertools.zip_longest(*(self._choice_messages(assign, choice) for choice in choices))

    def _choice_messages(self, assign: Assign, choice: int) -> Iterator[ChoiceTokens]:
        """The messages of one choice, `burst` tokens each, without the tokens that the gateway has already."""
        prompt = assign.prompt_ids[: len(assign.prompt_ids) - assign.num_replayed]
        seq, token_ids = assign.num_replayed, list[int]()
        for place, token_id in enumerate(self.behaviour.script(replace(assign, prompt_ids=prompt), choice)):
            if place >= assign.num_replayed:
                token_ids.append(token_id)
            finish = str(finish_reason(assign.sampling, place + 1, token_id) or "")
            if finish or len(token_ids) == self.behaviour.burst:
                scored = _scored(assign, token_ids)
                yield ChoiceTokens(assign.request_id, assign.attempt, choice, seq, tuple(token_ids), finish, scored)
                seq, token_ids = place + 1, []
            if finish:
                return
        if token_ids:
            scored = _scored(assign, token_ids)
            yield ChoiceTokens(assign.request_id, assign.attempt, choice, seq, tuple(token_ids), "", scored)


def _first_of(news: ChoiceTokens) -> ChoiceTokens:
    """Its first token alone."""
    scored = None if news.logprobs is None else news.logprobs.part(0, 1)
    return replace(news, token_ids=news.token_ids[:1], finish="", logprobs=scored)


def prompt_scores(token_ids: Sequence[int], start: int, asked: PromptLogprobsAsked) -> tuple[TokenLogprob, ...]:
    """The token at position p is the second likeliest one, with the logarithm -p."""

    def top(place: int, token: int) -> tuple[tuple[int, float], ...]:
        ids = (token + 1 - rank for rank in range(asked.num_top))
        return tuple((each if each >= 0 else each + 300, -place + 0.5 - rank / 2) for rank, each in enumerate(ids))

    return tuple(TokenLogprob(-float(place), 2, top(place, token)) for place, token in enumerate(token_ids, start))


@lru_cache(64)
def packed_scores(token_ids: tuple[int, ...], start: int, asked: PromptLogprobsAsked) -> Logprobs:
    """The same as they travel. A benchmark asks for the same ones again and again."""
    return of_tokens(prompt_scores(token_ids, start, asked))


def _scored(assign: Assign, token_ids: list[int]) -> Logprobs | None:
    """Each token is the likeliest one; those with the next ids follow."""
    if (asked := assign.sampling.logprobs) is None:
        return None
    return of_tokens(
        tuple(
            TokenLogprob(-0.5, 1, tuple((token + place, -0.5 - place) for place in range(asked.num_top)))
            for token in token_ids
        )
    )
