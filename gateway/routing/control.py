"""The gateway's side of the workers: admits them, reads their messages, declares them lost.

A thin loop around membership.py and dispatch.py, which decide. Each member's messages are numbered in a session. They
come and go through control_socket.py.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

from gateway.routing.control_socket import ControlSocket
from gateway.routing.dispatch import FOREIGN, INVALID, Dispatch
from gateway.routing.flushes import Flush, Flushes
from gateway.routing.members import Change, HowLost, WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.pool_limits import limits_of
from gateway.routing.presence import Presence
from gateway.routing.punctuality import Punctuality
from gateway.routing.retries import RetryRules
from gateway.words.limits import NO_LIMITS, Limits
from protocol.errors import Unavailable, WireError, WorkerLeft, WorkerLost
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
from runtime.clock import Clock
from runtime.log import Refusals, get_log
from runtime.session import Envelope, Session, SessionLost, open_envelope
from runtime.settings import Pairing

MALFORMED = "message"  # a kind of refused messages
FLUSH_S = 10.0  # for all workers to answer
log = get_log("gateway.control")
Report = PromptLogprobs | FirstToken | Tokens | RequestFailed | Preempted | CacheFlushed


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
            if change.is_repeated:
                continue  # the first answer is logged
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
