"""A worker that speaks the gateway's real messages over a real socket and makes its tokens up.

It can send first tokens late, everything twice, out of order, several at once; stop in the middle; fail; fall silent.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import zmq
import zmq.asyncio

from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import (
    TO_GATEWAY,
    TO_WORKER,
    Assign,
    CancelRequest,
    ChoiceTokens,
    FirstToken,
    Heartbeat,
    KvPages,
    Register,
    RegisterAgain,
    RequestFailed,
    Role,
    Stamp,
    ToGateway,
    Tokens,
    ToWorker,
    Welcome,
    WorkerAddress,
    WorkerStats,
)
from protocol.request import finish_reason
from runtime.session import Session, open_envelope

PATIENCE_S = 60.0  # for what takes moments; only a failure takes so long
LAYOUT = KvLayout(num_layers=2, num_kv_heads=1, head_dim=4, page_size=4, dtype="float32")
MODEL = Fingerprint("story")
STATS = WorkerStats(KvPages(total=256, free=250, owned=6), running=1, waiting=0, counters={"bytes_sent_total": 5.0})
_instances = itertools.count(1000)

Script = Callable[[Assign, int], Sequence[int]]


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
    stop_after: int | None = None  # tokens; then silence about this request
    fail_after: int | None = None
    fail_code: str = "internal_error"
    pause_s: float = 0.0


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
    instance: int = field(default_factory=lambda: next(_instances))

    def __post_init__(self) -> None:
        self.received: list[ToWorker] = []
        self.welcomed = asyncio.Event()
        self.silent = False
        self.stats = STATS  # of the next heartbeats
        self.loses: Callable[[ToGateway], bool] = lambda message: False  # what is lost on the way
        self.num_lost = 0
        self._session = Session(1)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTING_ID, f"{self.worker_id}#{self.instance}".encode())
        self._socket.connect(self.endpoint)
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled: set[tuple[str, int]] = set()
        self._news = asyncio.Event()

    @property
    def address(self) -> WorkerAddress:
        return WorkerAddress(self.worker_id, self.instance, "tcp://127.0.0.1:1", "")

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
            STATS,
            "" if self.role is Role.UNIFIED else "zmq",
        )

    async def start(self) -> "FakeWorker":
        """Registers and waits for the Welcome."""
        await self.send(self.registration())
        self._spawn(self._receive())
        self._spawn(self._beat())
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
                self._session = Session(self._session.epoch + 1)
                await self.send(self.registration())
            elif isinstance(message, Welcome):
                self.welcomed.set()
            elif isinstance(message, Assign):
                self._spawn(self._serve(message))
            elif isinstance(message, CancelRequest):
                choices = range(128) if message.choice < 0 else (message.choice,)
                self._cancelled |= {(message.request_id, choice) for choice in choices}
            self._news.set()

    async def _serve(self, assign: Assign) -> None:
        """Answers one request: first tokens by the prefill fake, then everything by this one."""
        how = self.behaviour
        first_choice = assign.first_choice
        choices = range(first_choice, first_choice + assign.num_choices)
        plan = [self._choice_messages(assign, choice) for choice in choices]
        first = FirstToken(
            tuple(replace(messages[0], token_ids=messages[0].token_ids[:1], finish="") for messages in plan),
            (Stamp("first token", 0.5, self.prefill.worker_id),) if self.prefill is not None else (),
        )
        if self.prefill is not None and not how.first_token_late:
            await self.prefill.send(first)
        steps = list(itertools.zip_longest(*plan))
        for step in reversed(steps) if how.reverse else steps:
            going_on = [each for each in step if each is not None and not self._is_cancelled(each)]
            if how.fail_after is not None and going_on and going_on[0].seq >= how.fail_after:
                await self.send(RequestFailed(assign.request_id, assign.attempt, how.fail_code, "it was told to"))
                return
            if how.stop_after is not None and going_on and going_on[0].seq >= how.stop_after:
                return
            if going_on:
                is_end = any(each.finish for each in going_on)
                stamps: dict[str, tuple[Stamp, ...]] = {}
                if is_end:
                    stamps[assign.request_id] = (Stamp("decode done", 0.7, self.worker_id),)
                for _ in range(2 if how.twice else 1):
                    await self.send(Tokens(tuple(going_on), stamps))
            await asyncio.sleep(how.pause_s)
        if self.prefill is not None and how.first_token_late:
            await self.prefill.send(first)

    def _is_cancelled(self, news: ChoiceTokens) -> bool:
        return (news.request_id, news.choice) in self._cancelled

    def _choice_messages(self, assign: Assign, choice: int) -> list[ChoiceTokens]:
        token_ids: list[int] = []
        finish = ""
        num_prompt = len(assign.prompt_ids) - assign.num_replayed
        for token_id in self.behaviour.script(replace(assign, prompt_ids=assign.prompt_ids[:num_prompt]), choice):
            token_ids.append(token_id)
            finish = str(finish_reason(assign.sampling, len(token_ids), token_id) or "")
            if finish:
                break
        burst = self.behaviour.burst
        messages = [
            ChoiceTokens(assign.request_id, assign.attempt, choice, seq, tuple(token_ids[seq : seq + burst]))
            for seq in range(assign.num_replayed, len(token_ids), burst)
        ]
        messages[-1] = replace(messages[-1], finish=finish)
        return messages
