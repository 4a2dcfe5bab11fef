"""The gateway's side of the workers: admits them, gives them requests, passes on what they answer, ends what is lost.

A thin loop around membership, pairing and requests. What it does not know: HTTP, text.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.control_socket import ControlSocket
from gateway.limits import Limits
from gateway.membership import LOST_AFTER_S, Change, Member, Membership, WorkerKey
from gateway.pairing import Load, LoadBook, Pairer, decode_load, prefill_load
from gateway.requests import Delivery, RequestRecord, Requests
from gateway.translate import Job
from protocol.errors import BatonError, InternalError, Unavailable, WireError, WorkerLost, error_from_code
from protocol.messages_gateway import (
    TO_GATEWAY,
    TO_WORKER,
    Assign,
    CancelRequest,
    ChoiceTokens,
    FirstToken,
    Heartbeat,
    Leaving,
    Refused,
    Register,
    RequestFailed,
    Role,
    Stamp,
    ToGateway,
    Tokens,
    ToWorker,
)
from protocol.request import FinishReason
from runtime.clock import Clock
from runtime.log import get_log
from runtime.settings import Pairing

TICK_S = 0.25
GATEWAY = "gateway"  # the worker name of the gateway's own stamps
log = get_log("gateway.control")


class Listener(Protocol):
    """Whoever waits for one request. Called on the loop; must not block."""

    def on_tokens(self, delivery: Delivery) -> None:
        """New tokens of one choice, in order, each once."""
        ...

    def on_failed(self, error: BatonError) -> None:
        """The request cannot go on; nothing follows."""
        ...


@dataclass
class Ticket:
    """A request in flight as its owner sees it. Cancelling something that has ended does nothing."""

    request_id: str
    record: RequestRecord
    cancel: Callable[[int], None]  # one choice, or -1 for all

    @property
    def pair(self) -> str:
        """The names of its workers, for the log."""
        prefill, decode = self.record.prefill, self.record.decode
        return f"{prefill.worker_id}+{decode.worker_id}" if prefill is not None else decode.worker_id


class Control:
    """One gateway's workers and requests. Everything happens on one loop."""

    def __init__(self, socket: ControlSocket, clock: Clock, pairing: Pairing) -> None:
        self._socket = socket
        self._clock = clock
        self._pairer = Pairer(pairing)
        self._loads = LoadBook()
        self._listeners: dict[str, Listener] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._limits: Limits | None = None
        self.membership = Membership(secrets.randbits(62))
        self.requests = Requests()
        self.num_refused_messages = 0

    def start(self) -> None:
        """Begins to take messages. Call it on the running loop."""
        self._socket.start(self._on_raw)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def close(self) -> None:
        """Fails what is in flight and closes the socket."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.fail_all("the gateway has stopped")
        self._socket.close()

    def fail_all(self, why: str) -> None:
        """Fails and cancels every request in flight."""
        for request_id in list(self._listeners):
            self._cancel(request_id, -1, Unavailable(why))

    @property
    def limits(self) -> Limits:
        """What the present workers can hold."""
        if self._limits is None:
            self._limits = limits_of(self.membership.members)
        return self._limits

    @property
    def loads(self) -> Mapping[WorkerKey, Load]:
        """What requests in flight weigh on each worker; nothing is left of those that have ended."""
        return self._loads.loads

    # ---- requests ----

    def assign(self, request_id: str, job: Job, listener: Listener, timeline: bool = False) -> Ticket:
        """Gives a request to a pair of workers; Unavailable when there is none."""
        choice = self._pairer.pick(self.membership.members, job.need, self.loads)
        if choice is None:
            raise Unavailable(self.membership.missing or "no workers are ready that can hold this request")
        prefill = choice.prefill
        key = choice.decode.key
        record = self.requests.add(request_id, job.need, key, prefill.key if prefill else None)
        assign = Assign(
            request_id,
            record.attempt,
            job.prompt_ids,
            job.sampling,
            job.num_choices,
            prefill.address if prefill else None,
            timeline,
        )
        assigned_at = self._clock.now()
        if not self._send(key, assign):
            self.requests.remove(request_id)
            raise Unavailable(f"worker {key.worker_id!r} cannot be reached; try again")
        self._listeners[request_id] = listener
        self._loads.add(key, decode_load(job.need))
        if prefill is not None:
            self._loads.add(prefill.key, prefill_load(job.need))
        record.stamps.append(Stamp("assigned", assigned_at, GATEWAY))
        return Ticket(request_id, record, lambda number: self._cancel(request_id, number))

    def _cancel(self, request_id: str, number: int, error: BatonError | None = None) -> None:
        """Nobody wants the rest of one choice, or (-1) of the request."""
        record = self.requests.find(request_id)
        if record is None:
            return
        if number >= 0:
            if record.choices[number].closed and record.choices[number].finish is not None:
                return
            self.requests.close_choice(request_id, number)
            if not record.is_done:
                self._send(record.decode, CancelRequest(request_id, record.attempt, number))
                return
        self._send(record.decode, CancelRequest(request_id, record.attempt))
        listener = self._forget(record)
        if error is not None and listener is not None:
            listener.on_failed(error)

    def _forget(self, record: RequestRecord) -> Listener | None:
        """The end of a request, whatever the reason: load and listener go."""
        self.requests.remove(record.request_id)
        self._first_token_seen(record)
        self._loads.remove(record.decode, decode_load(record.need))
        return self._listeners.pop(record.request_id, None)

    def _first_token_seen(self, record: RequestRecord) -> None:
        if record.prefill is not None and record.on_prefill:
            record.on_prefill = False
            self._loads.remove(record.prefill, prefill_load(record.need))

    def _fail(self, record: RequestRecord, error: BatonError) -> None:
        listener = self._forget(record)
        if listener is not None:
            listener.on_failed(error)

    # ---- messages ----

    def _on_raw(self, identity: bytes, raw: bytes) -> None:
        try:
            self._on_message(identity, TO_GATEWAY.decode(raw))
        except WireError as error:
            self.num_refused_messages += 1
            log.warning("message refused", worker=identity.decode("utf-8", "replace"), why=error.message)

    def _on_message(self, identity: bytes, message: ToGateway) -> None:
        now = self._clock.now()
        if isinstance(message, Register):
            _check_sender(identity, WorkerKey(message.address.worker_id, message.address.instance))
            self._apply(self.membership.register(message, now))
        elif isinstance(message, Heartbeat):
            _check_sender(identity, WorkerKey(message.worker_id, message.instance))
            self._apply(self.membership.heartbeat(message, now))
        elif isinstance(message, Leaving):
            _check_sender(identity, WorkerKey(message.worker_id, message.instance))
            self._apply(self.membership.leaving(message), is_orderly=True)
        elif not self.membership.has_identity(identity):
            raise WireError(f"{type(message).__name__} from a worker that is not a member")
        elif isinstance(message, FirstToken):
            first = message.choices[0] if message.choices else None
            if first is not None:
                self.requests.add_stamps(first.request_id, first.attempt, message.stamps)
            for news in message.choices:
                self._on_tokens(news)
        elif isinstance(message, Tokens):
            for news in message.choices:
                self.requests.add_stamps(news.request_id, news.attempt, message.stamps.get(news.request_id, ()))
                self._on_tokens(news)
        else:
            self._on_failed(message)

    def _on_tokens(self, news: ChoiceTokens) -> None:
        """Passes on what is new. Nonsense fails the request it names, and only that."""
        try:
            accepted = self.requests.accept(news)
            if accepted is not None and accepted[1].finish is FinishReason.CANCELLED:
                raise WireError(f"choice {news.choice} was cancelled, but not by the gateway")
        except (WireError, ValueError) as error:
            self.num_refused_messages += 1
            log.warning("tokens refused", request=news.request_id, why=str(error))
            record = self.requests.get(news.request_id, news.attempt)
            if record is not None:
                self._send(record.decode, CancelRequest(record.request_id, record.attempt))
                self._fail(record, InternalError("a worker sent tokens that make no sense"))
            return
        if accepted is None:
            return
        record, delivery = accepted
        self._first_token_seen(record)
        listener = self._listeners.get(record.request_id)
        if record.is_done:
            self._forget(record)
        if listener is not None:
            listener.on_tokens(delivery)

    def _on_failed(self, message: RequestFailed) -> None:
        record = self.requests.get(message.request_id, message.attempt)
        if record is None:
            self.requests.num_dropped += 1
            return
        self._fail(record, error_from_code(message.code, message.message))

    # ---- members ----

    def _apply(self, change: Change, is_orderly: bool = False) -> None:
        for outgoing in change.outgoing:
            self._send(outgoing.to, outgoing.message)
            if isinstance(outgoing.message, Refused):
                log.warning("worker refused", worker=outgoing.to.worker_id, why=outgoing.message.reason)
        if change.kept_waiting:
            log.warning("worker kept waiting", why=change.kept_waiting)
        if change.joined is not None:
            self._limits = None
            log.info("worker joined", worker=change.joined.key.worker_id, role=str(change.joined.role))
        for member in change.lost:
            self._limits = None
            if is_orderly:
                log.info("worker left", worker=member.key.worker_id)
            else:
                log.warning("worker lost", worker=member.key.worker_id, why=self.membership.why_lost(member.key))
            for record in self.requests.running_on(member.key):
                self._fail(record, WorkerLost(f"{member.role} worker {member.key.worker_id!r} is lost"))

    def _send(self, key: WorkerKey, message: ToWorker) -> bool:
        return self._socket.send(key.identity, TO_WORKER.encode(message))

    async def _tick(self) -> None:
        """Looks for silent workers. When this loop itself was held up, their heartbeats may still wait to be read: then
        one more turn is given."""
        last = self._clock.now()
        while True:
            await asyncio.sleep(TICK_S)
            now = self._clock.now()
            if now - last < LOST_AFTER_S / 2:
                self._apply(self.membership.expire(now))
            last = now


def _check_sender(identity: bytes, key: WorkerKey) -> None:
    if identity != key.identity:
        raise WireError(f"it names worker {key.worker_id!r} instance {key.instance}, its connection another")


def limits_of(members: tuple[Member, ...]) -> Limits:
    """What these workers can hold together."""
    if not members:
        return Limits()
    decodes = [member.registered for member in members if member.role is not Role.PREFILL]
    prefills = [member.registered for member in members if member.role is not Role.DECODE]
    return Limits(
        context_length=min(member.registered.context_length for member in members),
        vocab_size=min(member.registered.vocab_size for member in members),
        pool_tokens=max((each.max_total_tokens for each in decodes), default=None),
        prefill_pool_tokens=max((each.max_total_tokens for each in prefills), default=None),
        page_size=members[0].registered.layout.page_size,
        max_choices=max((each.max_running_requests for each in decodes), default=None),
    )
