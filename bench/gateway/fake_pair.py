"""A prefill and a decode worker without a model. They answer at once and keep a steady pace, so that the gateway is
measured.

    Assign -> FirstToken at once (prefill's connection); then every `step_s` one Tokens for all that run (decode's)

lone_gateway.py has the clients.
"""

import asyncio
import os
from dataclasses import dataclass
from typing import Self

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
    Role,
    ToGateway,
    Tokens,
    ToWorker,
    WorkerAddress,
    WorkerStats,
)
from runtime.clock import Clock
from runtime.session import Session, open_envelope

STATS = WorkerStats(kv_pages=KvPages(total=65536, free=65536), running=0, waiting=0)
LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=4, page_size=16, dtype="float32")
HEARTBEAT_S = 0.2
CONTEXT_LENGTH = 1 << 20


@dataclass
class _Running:
    """A request of one choice that decodes. `seq` is the index of its next token."""

    assign: Assign
    seq: int = 0


class FakePair:
    """Start it with `async with`. `vocab_size` is the model's; all token ids are below it."""

    def __init__(self, endpoint: str, clock: Clock, step_s: float, vocab_size: int) -> None:
        self._clock, self._step_s, self._vocab_size = clock, step_s, vocab_size
        self.assigned_at: dict[tuple[int, ...], float] = {}  # by the prompt's ids, in seconds of `clock`
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._prefill = self._dial(endpoint, Role.PREFILL)
        self._decode = self._dial(endpoint, Role.DECODE)
        self._sessions = {self._prefill: Session(1), self._decode: Session(1)}
        self._running: dict[str, _Running] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def _dial(self, endpoint: str, role: Role) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTING_ID, f"{role}#1".encode())
        socket.connect(endpoint)
        return socket

    async def __aenter__(self) -> Self:
        for role, socket in ((Role.PREFILL, self._prefill), (Role.DECODE, self._decode)):
            await self._send(socket, self._registration(role))
            await self._receive(socket)
        works = (self._take(), self._hear_prefill(), self._steps(), self._beat())
        self._tasks = [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._prefill.close(0)
        self._decode.close(0)
        self._context.term()

    def _registration(self, role: Role) -> Register:
        address = WorkerAddress(
            worker_id=str(role), instance=1, peer="tcp://127.0.0.1:1" if role is Role.PREFILL else "", data=""
        )
        return Register(
            address=address,
            role=role,
            pid=os.getpid(),
            host="localhost",
            layout=LAYOUT,
            fingerprint=Fingerprint("fake"),
            vocab_size=self._vocab_size,
            context_length=CONTEXT_LENGTH,
            max_running_requests=4096,
            max_total_tokens=CONTEXT_LENGTH,
            stats=STATS,
        )

    async def _take(self) -> None:
        while True:
            message = await self._receive(self._decode)
            if isinstance(message, Assign):
                self.assigned_at[message.prompt_ids] = self._clock.now()
                self._running[message.request_id] = running = _Running(message)
                await self._send(self._prefill, FirstToken((self._news(running),)))
            elif isinstance(message, CancelRequest):
                self._running.pop(message.request_id, None)

    async def _hear_prefill(self) -> None:
        while True:
            await self._receive(self._prefill)

    async def _steps(self) -> None:
        due = self._clock.now()
        while True:
            due = max(due + self._step_s, self._clock.now())
            await asyncio.sleep(due - self._clock.now())
            if not self._running:
                continue
            news = []
            for request_id, running in list(self._running.items()):
                news.append(self._news(running))
                running.seq += 1
                if news[-1].finish:
                    del self._running[request_id]
            await self._send(self._decode, Tokens(tuple(news)))

    def _news(self, running: _Running) -> ChoiceTokens:
        assign, seq = running.assign, running.seq
        is_last = seq + 1 == assign.sampling.max_tokens
        token_id = (sum(assign.prompt_ids[:2]) + 5 * seq) % self._vocab_size
        return ChoiceTokens(
            request_id=assign.request_id,
            attempt=assign.attempt,
            choice=0,
            seq=seq,
            token_ids=(token_id,),
            finish="length" if is_last else "",
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for role, socket in ((Role.PREFILL, self._prefill), (Role.DECODE, self._decode)):
                await self._send(socket, Heartbeat(worker_id=str(role), instance=1, stats=STATS))

    async def _send(self, socket: zmq.asyncio.Socket, message: ToGateway) -> None:
        await socket.send(self._sessions[socket].seal(TO_GATEWAY.encode(message)))

    async def _receive(self, socket: zmq.asyncio.Socket) -> ToWorker | None:
        """What the gateway says next; None if only its numbers."""
        envelope = open_envelope(await socket.recv())
        is_news = self._sessions[socket].accept(envelope)
        return TO_WORKER.decode(envelope.body) if is_news else None
