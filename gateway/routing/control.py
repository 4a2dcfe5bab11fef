"""The gateway's side of the workers: admits them, reads their messages, declares them lost.

A thin loop around membership.py and dispatch.py, which decide. Each member's messages are numbered in a session. They
come and go as whole messages through one ROUTER on the asyncio loop.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict

import zmq

from gateway.routing.dispatch import FOREIGN, INVALID, Dispatch
from gateway.routing.flushes import Flush, Flushes
from gateway.routing.members import Change, HowLost, WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.pool_limits import limits_of
from gateway.routing.presence import Presence
from gateway.routing.retries import RetryRules
from gateway.words.limits import NO_LIMITS, Limits
from protocol.errors import AddressInUse, ConfigError, Unavailable, WireError, WorkerLeft, WorkerLost
from protocol.message import MAX_STRANGER_BYTES
from protocol.messages_gateway import (
    TO_GATEWAY,
    TO_WORKER,
    CacheFlushed,
    DeclaredLost,
    FirstToken,
    FlushCache,
    GatewayLeft,
    Heartbeat,
    Leaving,
    Left,
    Preempted,
    PromptLogprobs,
    Refused,
    Register,
    RequestFailed,
    Role,
    ToGateway,
    Tokens,
    ToWorker,
)
from runtime.bus import Routed, open_router, send_routed
from runtime.clock import Clock
from runtime.curve import open_security
from runtime.keys import Keys
from runtime.log import Refusals, get_log
from runtime.session import Envelope, Session, SessionLost, open_envelope
from runtime.settings import Pairing

TICK_S = 0.25
MALFORMED = "message"  # a kind of refused messages
LATE_S = 1.0  # seconds between two looks; after more, heartbeats may wait to be read
MOST_LATE = 4  # late looks in a row; a worker that is silent in all of them really is
LEAST_PAUSE_S = 0.001  # timers fire up to so much too soon
MAX_DRAIN = 200  # messages read at a time, so that clients are written to in between
DRAIN_BYTES = 1024 * 1024  # bytes read at a time, because parsing them takes time too
LINGER_MS = 200  # for the last messages to workers, when the gateway ends
FLUSH_S = 10.0  # for all workers to answer
log = get_log("gateway.control")
Report = PromptLogprobs | FirstToken | Tokens | RequestFailed | Preempted | CacheFlushed


class ControlSocket:
    """Binds `endpoint` ("tcp://127.0.0.1:0": for port 0 the system chooses). With `keys`, only workers with an allowed
    key may connect. Call `start` on the running loop."""

    def __init__(self, endpoint: str, keys: Keys | None = None) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[bytes, bytes], None] | None = None
        self._is_scheduled = False
        self.is_full = False  # the last message was not queued, because its worker does not take those before it
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._security = open_security(keys, self._context, log)
        self._socket = open_router(self._context, TO_GATEWAY.max_bytes)
        self._security.guard(self._socket)  # workers know our key already

        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            kind = AddressInUse if error.errno == zmq.EADDRINUSE else ConfigError
            raise kind(f"control: cannot listen on {endpoint!r}: {error}", param="control") from error

        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes), "the option is bytes"
        self.endpoint = bound.rstrip(b"\0").decode("ascii")

    def refused(self) -> Mapping[str, int]:
        """Connections that were refused so far, by reason; empty without keys. Also logs new ones."""
        return self._security.refused()

    def start(self, on_message: Callable[[bytes, bytes], None]) -> None:
        """Calls `on_message(identity, raw)` on the loop for every message that arrives."""
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._schedule()

    def send(self, identity: bytes, raw: bytes) -> bool:
        """Queues a message. False if that worker is not connected or its queue is full."""
        try:
            routed = send_routed(self._socket, identity, raw)
            self.is_full = routed is Routed.FULL
            return routed is Routed.QUEUED
        finally:
            self._schedule()  # the descriptor signals a change only once, and sending may have consumed the signal

    def close(self) -> None:
        """Closes the socket. What is queued has LINGER_MS to leave."""
        if self._loop is not None and not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
        self._on_message = None
        self._socket.close(LINGER_MS)
        self._security.close()
        self._context.term()

    def _schedule(self) -> None:
        if self._loop is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._is_scheduled = False
        num_bytes = 0
        for _ in range(MAX_DRAIN):
            if num_bytes >= DRAIN_BYTES:
                break

            if self._on_message is None:  # closed meanwhile
                return

            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

            raw = parts[1] if len(parts) == 2 else b"".join(parts[1:])
            num_bytes += len(raw)
            self._on_message(parts[0], raw)
        self._schedule()


class Punctuality:
    """When the gateway looks at its workers, and whether it does so in time: after a pause of its own, it must not take
    unread heartbeats for silence. `now` is in seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._num_late = 0  # late looks in a row

    def look(self, now: float) -> bool:
        """Whether this look came in time, or so many came late that nothing waits to be read any more."""
        self._num_late = self._num_late + 1 if now - self._last >= LATE_S else 0
        self._last = now
        return self._num_late % MOST_LATE == 0

    def pause(self, now: float, next_silent_at: float) -> float:
        """Seconds until the next look: the usual ones, or fewer if a worker will have been silent for too long by then.
        After a late look heartbeats may still wait to be read, so nobody is looked at sooner than usual."""
        if self._num_late or next_silent_at <= now:
            return TICK_S
        return min(TICK_S, next_silent_at - now + LEAST_PAUSE_S)


class Control:
    """One gateway's workers and requests. Everything happens on one loop. `model_limits` come from the model folder and
    the settings. `blame`: see Dispatch."""

    def __init__(
        self,
        socket: ControlSocket,
        clock: Clock,
        pairing: Pairing,
        rules: RetryRules,
        membership: Membership,
        model_limits: Limits = NO_LIMITS,
        blame: Callable[[str], None] = lambda _grammar: None,
    ) -> None:
        self._socket, self._clock, self._model_limits = socket, clock, model_limits
        self._ticker: asyncio.Task[None] | None = None
        self._limits: Limits | None = None
        self.refusals = Refusals(log, "message refused")
        self.refusals.counts.update({MALFORMED: 0, FOREIGN: 0, INVALID: 0})
        self._sessions: dict[bytes, Session] = {}  # of members, by the routing id of their sockets
        self._flushes = Flushes(self._ask_to_flush)
        self.joined = Counter({str(role): 0 for role in Role})  # workers that became members, by role
        self.membership, self.presence = membership, Presence(clock.now())
        self.dispatch = Dispatch(
            membership, clock, pairing, rules, self._send, self._lose, self.refusals, blame, self.presence.awaited_since
        )

    def start(self) -> None:
        """Begins to receive messages. Call it on the running loop."""
        self._socket.start(self._on_raw)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def close(self) -> None:
        """Fails every request in flight, tells the workers that this gateway ends, and closes the socket."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.dispatch.stop("the gateway has stopped")
        for member in self.membership.members:
            self._send(member.key, GatewayLeft())
        self._socket.close()

    @property
    def limits(self) -> Limits:
        """The limits of the model and of the present workers together."""
        self._limits = self._limits or limits_of(self.membership.members, self._model_limits)
        return self._limits

    async def flush_caches(self) -> None:
        """Returns when no worker reuses KV that was written before this call. Unavailable if one does not answer."""
        flush = self.begin_flush()
        try:
            await asyncio.wait_for(flush.done.wait(), FLUSH_S)
        except TimeoutError as error:
            silent = ", ".join(WorkerKey.of(identity).worker_id for identity in sorted(flush.waiting))
            raise Unavailable(
                f"{silent} did not answer in {FLUSH_S:g} s, and may still reuse what it has cached"
            ) from error
        finally:
            self._flushes.end(flush)

    def begin_flush(self) -> Flush:
        """Asks the workers to forget what they have cached."""
        return self._flushes.begin()

    def _ask_to_flush(self, number: int, roles: tuple[Role, ...]) -> list[bytes]:
        keys = self.membership.flush(roles)
        for key in keys:
            self._send(key, FlushCache(number))
        return [key.identity for key in keys]

    # ---- messages ----

    def _on_raw(self, identity: bytes, raw: bytes) -> None:
        session = self._sessions.get(identity)
        most = None if session is not None else MAX_STRANGER_BYTES
        try:
            envelope = open_envelope(raw)
            message = TO_GATEWAY.decode(envelope.body, most) if envelope.body else None
            is_news = session is None or session.accept(envelope)
            if is_news and message is not None:
                self._on_message(identity, message, envelope)
        except SessionLost as lost:
            self._lose(WorkerKey.of(identity), lost)
        except WireError as error:
            self.refusals.note(MALFORMED, worker=identity.decode("utf-8", "replace"), why=error.message)

    def _on_message(self, identity: bytes, message: ToGateway, envelope: Envelope) -> None:
        if isinstance(message, Report):
            if identity not in self._sessions:
                raise WireError(f"{type(message).__name__} from a worker that is not a member")
            self._on_report(identity, message)
            return

        key = WorkerKey.named_in(message.address if isinstance(message, Register) else message)
        if identity != key.identity:
            raise WireError(
                f"it names worker {key.worker_id!r} instance {key.instance}, its connection belongs to another"
            )

        if isinstance(message, Leaving):
            self._let_go(key)
            return
        if isinstance(message, Left):
            self._apply(self.membership.give_up(key, "has left", HowLost.LEFT))
            return
        if isinstance(message, Heartbeat):
            change = self.membership.heartbeat(message, self._clock.now())
        elif identity in self._sessions or envelope.opens:
            change = self.membership.register(message, self._clock.now(), envelope.session_number)
        else:
            change = self.membership.greet_stranger(key)  # its first message is lost, or went to another gateway

        for member in change.joined:
            self._sessions[member.key.identity] = Session(member.session, num_received=1)  # its Register
        self._apply(change, envelope.session_number)

    def _on_report(self, identity: bytes, message: Report) -> None:
        """A member tells about requests, or answers."""
        if isinstance(message, PromptLogprobs):
            self.dispatch.on_prompt_logprobs(identity, message)
            return
        if isinstance(message, RequestFailed):
            self.dispatch.on_failed(identity, message)
            return
        if isinstance(message, Preempted):
            self.dispatch.on_preempted(identity, message)
            return
        if isinstance(message, CacheFlushed):
            self._flushes.answered(message.number, identity)
            return
        for news in message.choices:
            if isinstance(message, FirstToken):
                self.dispatch.on_tokens(identity, news, message.stamps, message.num_cached)
            else:
                stamps, num_cached = message.stamps.get(news.request_id, ()), message.cached.get(news.request_id, 0)
                self.dispatch.on_tokens(identity, news, stamps, num_cached)

    # ---- members ----

    def _apply(self, change: Change, session_number: int = 0) -> None:
        """Acts on a change. `session_number`: of the message that caused it. Strangers are answered in it."""
        for to, message in change.outgoing:
            self._send(to, message, session_number)
            if isinstance(message, Refused):
                loss = self.membership.losses.get(to)
                has_left = loss is not None and loss.how is HowLost.LEFT  # a rank whose group has left ends, too
                (log.info if has_left else log.warning)("worker refused", worker=to.worker_id, why=message.reason)
            elif isinstance(message, DeclaredLost):
                log.info("lost worker is heard again", worker=to.worker_id, instance=to.instance)

        if change.kept_waiting:
            log.warning("worker kept waiting", why=change.kept_waiting)
        if change.gathering:
            log.info("worker waits for its group", why=change.gathering)

        for member in change.joined:
            self._limits = None
            self.joined[str(member.role)] += 1
            place = {} if member.place is None else asdict(member.place)
            log.info("worker joined", worker=member.key.worker_id, role=str(member.role), **place)
        if change.joined or change.lost:
            self.presence.note(self.membership, change, self._clock.now())
        if change.joined:
            self.dispatch.rescue()

        for member in change.lost:
            self._limits = None
            del self._sessions[member.key.identity]
            self._flushes.left(member.key.identity)
            who = f"{member.role} worker {member.key.worker_id!r}"
            if change.is_orderly:
                log.info("worker left", worker=member.key.worker_id)
                self.dispatch.lost(member.key, WorkerLeft(f"{who} has left"))
            else:
                log.warning("worker lost", worker=member.key.worker_id, why=self.membership.losses[member.key].reason)
                self.dispatch.lost(member.key, WorkerLost(f"{who} is lost"))

    def _let_go(self, key: WorkerKey) -> None:
        """A worker leaves with its group. Others get what these have not begun; what they have begun is waited for."""
        unit = self.membership.leaving(key)
        self.presence.note(self.membership, Change(), self._clock.now())
        for member in unit:
            log.info("worker leaves", worker=member.key.worker_id)
        for member in unit:
            self.dispatch.move_off(member.key)
        self._free()

    def _free(self) -> None:
        """Lets those go that leave and that no request needs any more."""
        self._apply(self.membership.free(lambda key: bool(self.dispatch.requests.needing(key))))

    def _lose(self, key: WorkerKey, lost: SessionLost | None = None) -> None:
        """Its session is lost, or the last message could not be sent to it."""
        cut = str(lost or "") or ("does not take what is sent to it" if self._socket.is_full else "")
        how = HowLost.CUT if cut else HowLost.ENDED
        self._apply(self.membership.give_up(key, cut or "has dropped its connection", how))

    def _send(self, key: WorkerKey, message: ToWorker, session_number: int = 0) -> bool:
        """False if the worker cannot be reached. A stranger gets an answer in the session that it has named."""
        session = self._sessions.get(key.identity)
        if session is None and not session_number:
            return False
        body = TO_WORKER.encode(message)
        raw = session.seal(body) if session is not None else Envelope(session_number, 0, 0, body).sealed()
        return self._socket.send(key.identity, raw)

    async def _tick(self) -> None:
        """Looks for lost workers. After this loop itself was held up, heartbeats may wait to be read, so some looks
        ignore silence. A fault that each look meets again is logged once."""
        punctuality, fault = Punctuality(self._clock.now()), ""
        while True:
            await asyncio.sleep(punctuality.pause(self._clock.now(), self.membership.next_silent_at))
            try:
                self.look(is_punctual=punctuality.look(self._clock.now()))
                self._socket.refused()  # logs new ones
                fault = ""
            except Exception as error:  # otherwise losses would go unnoticed, and clients would wait for ever
                if repr(error) != fault:
                    log.exception("look failed")
                fault = repr(error)

    def look(self, is_punctual: bool = True) -> None:
        """Declares workers lost whose connection is lost and, if this look is punctual, those that were silent for too
        long. Then looks again for workers for unpaired choices."""
        for identity, session in list(self._sessions.items()):
            try:
                if not self._socket.send(identity, session.tick()):
                    self._lose(WorkerKey.of(identity))
            except SessionLost as lost:
                self._lose(WorkerKey.of(identity), lost)
        if is_punctual:
            self._apply(self.membership.expire(self._clock.now()))
        self._free()
        self.dispatch.rescue()
