"""The process loop of every worker: poll, hand messages to the core, step it, send its outbox.

    gateway <-> Dealer <-> core.on_gateway / outbox.gateway
    peers   <-> PeerLink <-> core.on_peer / outbox.prefill, outbox.decode
    ranks   <-> GroupLink <-> the executor's Agreement

It joins the gateway, sends heartbeats, and leaves on a signal (departure.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import zmq

from protocol.errors import BatonError, GroupBroken, PrefillQueueFull, QueueFull, Unavailable, WireError
from protocol.messages_gateway import (
    TO_GATEWAY,
    TO_WORKER,
    Assign,
    CacheFlushed,
    CancelRequest,
    DeclaredLost,
    FlushCache,
    Heartbeat,
    Leave,
    Leaving,
    Left,
    PeerLost,
    Refused,
    Register,
    RegisterAgain,
    RequestFailed,
    ToGateway,
    ToWorker,
    Welcome,
)
from protocol.worker_facts import WorkerStats
from runtime.bus import REDIAL_S, Dealer, Wake
from runtime.clock import Clock
from runtime.log import EventLog, Refusals, get_log
from runtime.process_life import StopSignal
from runtime.session import Session, SessionLost, open_envelope
from scheduler.execution.streams import DeviceBroken, first_line
from scheduler.planning.overlap_loop import OverlapLoop
from scheduler.planning.planner import Planner
from worker.departure import Departure, State
from worker.requests import Outbox

HEARTBEAT_S = 0.25
REGISTER_AGAIN_S = 1.0
SILENT_GATEWAY_S = 5.0  # without an answer, before a warning is logged
JOIN_DEADLINE_S = 60.0
IDLE_POLL_S = 0.05  # how often a loop steps that holds pages, for transports that cannot be polled for "done reading"

log = get_log("worker")


class Core(Protocol):
    """A worker's decisions: PrefillWorker, DecodeWorker or UnifiedWorker."""

    outbox: Outbox
    loop: OverlapLoop

    def on_gateway(self, message: ToWorker) -> None:
        """Takes a message from the gateway."""

    def reset(self) -> None:
        """Ends everything, because the gateway has restarted."""

    def step(self) -> bool:
        """One turn; never blocks. False when there was nothing to do."""

    @property
    def planner(self) -> Planner:
        """What decides the launches and keeps the books."""

    @property
    def busy(self) -> bool:
        """Whether a launch, or device work of a transfer, is in flight."""

    def stats(self) -> WorkerStats:
        """Load for the heartbeat."""


class PeerLink:
    """The sockets between a worker and its peers of the other role, or the other ranks of its group. A worker without
    them has this one."""

    def __init__(self, log: EventLog = log) -> None:
        self.refusals = Refusals(log, "message refused")

    def receive(self) -> None:
        """Hands arrived messages to the core. Malformed ones are counted and dropped."""

    def flush(self) -> None:
        """Sends the core's messages to peers."""

    def tick(self) -> None:
        """Sends the counts of each session that is not settled. Called with every heartbeat."""

    def forget(self, instance: int) -> None:
        """Forgets a peer that is lost."""

    def forget_all(self) -> None:
        """Forgets every peer: a new gateway does not report peers that were lost with the old one."""

    def may_end(self, rests: bool) -> bool:
        """Whether this worker may end. `rests`: it has and gets no work. Other ranks are told, and must rest, too."""
        return rests

    def pollables(self) -> Sequence[Any]:
        """The sockets and descriptors to wait on."""
        return ()

    def close(self) -> None:
        """Closes every socket."""


class RefusedByGateway(BatonError):
    """The gateway refuses this worker. The message is its reason."""

    code = "refused"


class WorkerBroken(BatonError):
    """Every launch of this worker fails, for every request. The process ends, so that a restart may help.

    `at_device`: the device itself is broken, or the group, for which a forward may wait for ever. Then nothing on the
    device may be waited for, or closed.
    """

    code = "worker_broken"

    def __init__(self, message: str, *, at_device: bool = False) -> None:
        super().__init__(message)
        self.at_device = at_device


@dataclass
class WorkerLoop:
    """One worker process."""

    core: Core
    link: PeerLink
    gateway: Dealer
    register: Register
    wake: Wake
    stop: StopSignal
    clock: Clock
    on_ready: Callable[[], None]
    on_turn: Callable[[float], None] = lambda _now: None  # called with every heartbeat
    refused_connections: Callable[[], Mapping[str, int]] = dict  # by reason; see runtime/curve.py
    ranks: PeerLink = field(default_factory=PeerLink)  # a GroupLink, where there are other ranks
    silence_may_mean: str = ""  # why a gateway that runs may not answer, for logs and errors
    refusal_means: Mapping[str, str] = field(default_factory=dict)  # the likely cause of a refusal, by reason
    departure: Departure = field(default_factory=Departure)
    on_leaving: Callable[[int, float], None] = lambda _requests, _bound_s: None
    _session: Session = field(default_factory=lambda: Session(1))  # with the gateway
    _is_member: bool = False
    _gateway_instance: int = 0  # of the last gateway that answered; 0: none yet
    _join_deadline: float = 0.0
    _tell_at: float = 0.0  # when to log that no gateway answers
    _refusal: str = ""  # why the gateway has refused the connection since the last Welcome
    _is_cut_off: bool = False  # a member whose connection to the gateway is lost
    _next_beat: float = 0.0
    _refusals: Refusals = field(default_factory=lambda: Refusals(log, "message refused"))
    _next_register: float = 0.0
    _launch: int = 0  # the oldest in flight at the last turn
    _launch_since: float = 0.0
    _watched: tuple[Any, ...] = ()
    _poller: zmq.Poller = field(default_factory=zmq.Poller)

    def run(self) -> None:
        """Serves until it has left. Raises RefusedByGateway or Unavailable when it cannot join.

        Raises WorkerBroken, after telling the gateway that it leaves, when its launches fail one after the other, or
        its device or its group is broken.
        """
        self.begin()
        progressed = True
        while not self.ends():
            self._wait(progressed)
            progressed = self.turn()
        self.leave()

    def ends(self) -> bool:
        """Whether this worker ends now: after `leave`. Tells the gateway when it begins to leave."""
        was, is_known = self.departure.state, self._is_member and not self._is_cut_off
        rests = self.ranks.may_end(self.departure.is_free and not self._holds_pages)
        state = self.departure.look(self.stop.count, self.clock.now(), is_known=is_known, rests=rests)
        if was is State.SERVING and state is not was:
            address, stats = self.register.address, self.core.stats()
            self._tell_gateway(Leaving(address.worker_id, address.instance))
            self.on_leaving(stats.running + stats.waiting, self.departure.bound_s)
        return state is State.ENDING

    def begin(self) -> None:
        """Starts the JOIN_DEADLINE_S in which a gateway must answer. Called before the first turn."""
        now = self.clock.now()
        self._join_deadline, self._tell_at = now + JOIN_DEADLINE_S, now + SILENT_GATEWAY_S

    def turn(self) -> bool:
        """Receives messages, steps the core, sends its messages. Never waits. False if there was nothing to do.

        Raises as `run` does.
        """
        try:
            self._receive()
            progressed = self.core.step()
            self._send()
        except (DeviceBroken, torch.AcceleratorError) as error:
            self._give_up()
            why = f"{self.register.device} cannot compute any more: {first_line(error)}"
            raise WorkerBroken(why, at_device=True) from error
        except GroupBroken as error:
            self._give_up()
            raise WorkerBroken(f"the ranks cannot go on together: {error.message}", at_device=True) from error
        if self.core.loop.broken:
            self._give_up()
            raise WorkerBroken(self.core.loop.broken)
        if not self._is_member:
            self._check_joining(self.clock.now())
        return progressed

    def leave(self) -> None:
        """Tells the gateway that this worker ends."""
        address = self.register.address
        self._tell_gateway(Left(address.worker_id, address.instance))
        log.info("left", signal=self.stop.received.name if self.stop.received else "")

    def _give_up(self) -> None:
        """The gateway gives its requests to other workers at once. Of one that leaves, Left would mean a good end: the
        end of its connection says that it is lost."""
        if self.departure.state is State.SERVING:
            self.leave()

    def _join_again(self) -> None:
        """Begins another session with the gateway. A Register opens it. A worker that still joins gets no more time."""
        if self._is_member:
            self.begin()
        self._session = Session(self._session.epoch + 1)
        self._is_member, self._next_register = False, 0.0

    def _check_joining(self, now: float) -> None:
        if now > self._join_deadline:
            why = self.refusal_means.get(self._refusal, self.silence_may_mean)
            why = f" ({why})" if why else ""
            raise Unavailable(f"no gateway has answered at {self.gateway.endpoint} in {JOIN_DEADLINE_S:.0f} s{why}")
        if now > self._tell_at and not self._refusal:
            perhaps = {"perhaps": self.silence_may_mean} if self.silence_may_mean else {}
            log.warning("no gateway answers yet, still trying", endpoint=self.gateway.endpoint, **perhaps)
            self._tell_at = self._join_deadline

    def _wait(self, progressed: bool) -> None:
        spins = self.core.busy and self.register.device.startswith("cuda")  # a GPU cannot wake this thread
        timeout_s = 0.0 if progressed or spins else self._next_beat - self.clock.now()
        if timeout_s > IDLE_POLL_S and self._holds_pages:
            timeout_s = IDLE_POLL_S
        self._poll(int(max(0.0, timeout_s) * 1e3 + 0.5))
        self.wake.clear()
        self.stop.clear_wakeup()

    @property
    def _holds_pages(self) -> bool:
        """Whether something may happen that no socket tells. Without pages of requests or transfers, nothing can."""
        pages = self.core.planner.book.counts()
        return self.core.busy or bool(pages.owned or pages.reserved or pages.quarantined)

    def _poll(self, timeout_ms: int) -> None:
        watched = (self.gateway.socket, self.wake.fd, self.stop.fd, *self.link.pollables(), *self.ranks.pollables())
        if watched != self._watched:
            self._watched, self._poller = watched, zmq.Poller()
            for each in watched:
                self._poller.register(each, zmq.POLLIN)
        self._poller.poll(timeout_ms)

    def _receive(self) -> None:
        for raw in self.gateway.receive():
            try:
                envelope = open_envelope(raw)
                message = TO_WORKER.decode(envelope.body) if envelope.body else None
                is_news = self._session.accept(envelope)
            except WireError as error:
                self._refusals.note("message", source="gateway", why=error.message)
            except SessionLost as lost:
                log.warning("the session with the gateway is lost", why=f"the gateway {lost}")
                self._join_again()
            else:
                if is_news and message is not None:
                    self._on_gateway(message)
        self.link.receive()
        self.ranks.receive()

    def _on_gateway(self, message: ToWorker) -> None:
        if isinstance(message, Refused | DeclaredLost | Leave):
            self._on_end(message)
            return
        if isinstance(message, Welcome | RegisterAgain):
            if self._gateway_instance not in (0, message.gateway_instance):
                log.warning("gateway restarted", instance=message.gateway_instance)
                self.core.reset()
                self.core.planner.book.flush()  # the new gateway may have flushed before this worker joined
                self.link.flush()
                self.link.forget_all()
            self._gateway_instance = message.gateway_instance
            if isinstance(message, RegisterAgain):
                self._join_again()
            else:
                self.core.planner.book.report_to(message.hash_key)
                joins, self._is_member, self._refusal = not self._is_member, True, ""
                if joins:
                    self.on_ready()
            return

        if isinstance(message, FlushCache):
            self.core.planner.book.flush()
            self._tell_gateway(CacheFlushed(message.number))
            return

        _log_news(message)
        self.core.on_gateway(message)
        if isinstance(message, PeerLost):
            self.link.flush()
            self.link.forget(message.instance)

    def _on_end(self, message: Refused | DeclaredLost | Leave) -> None:
        if isinstance(message, Leave):
            self.departure.is_free = True
        elif self.departure.state is State.LEAVING:
            self._is_member = False  # its group has left, so it ends, too
        else:
            raise RefusedByGateway(message.reason)

    def _send(self) -> None:
        self.ranks.flush()  # first: they wait for this rank's step
        self.link.flush()
        now = self.clock.now()
        if not self._is_member and now >= self._next_register:  # before anything else is said in its session
            self._next_register = now + REGISTER_AGAIN_S
            self._tell_gateway(replace(self.register, stats=self._stats()))

        outbox = self.core.outbox
        for message in outbox.gateway:
            self._tell_gateway(message)
            if isinstance(message, RequestFailed):
                ids = {"request_id": message.request_id, "attempt": message.attempt}
                tell = log.info if message.code in (QueueFull.code, PrefillQueueFull.code) else log.warning
                tell("request failed", **ids, code=message.code, why=message.message)
        outbox.gateway.clear()

        if self.core.loop.oldest_launch != self._launch:
            self._launch, self._launch_since = self.core.loop.oldest_launch, now
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT_S
            self.on_turn(now)
            if self._is_member:
                self._beat(now)
            self._tend_link(now)
            self.link.tick()
            self.ranks.tick()

    def _tend_link(self, now: float) -> None:
        refusal = self.gateway.tend(now)
        if refusal and refusal != self._refusal:
            self._refusal = refusal
            why = self.refusal_means.get(refusal, refusal)
            log.error("the gateway refuses this worker", endpoint=self.gateway.endpoint, why=why, again_s=REDIAL_S)

        if self._is_member and self.gateway.is_up == self._is_cut_off:
            self._is_cut_off = not self._is_cut_off
            say, what = (log.warning, "is lost") if self._is_cut_off else (log.info, "is back")
            say(f"the connection to the gateway {what}", endpoint=self.gateway.endpoint)

    def _stats(self) -> WorkerStats:
        stats, refused = self.core.stats(), self._refusals.total + self.link.refusals.total
        connections = {f"refused_connections_{reason}": count for reason, count in self.refused_connections().items()}
        return replace(stats, counters={**stats.counters, **connections, "refused_messages": refused})

    def _beat(self, now: float) -> None:
        address = self.register.address
        launch_age_s = now - self._launch_since if self._launch else 0.0
        news = self.core.planner.book.news.take()
        self._tell_gateway(Heartbeat(address.worker_id, address.instance, self._stats(), launch_age_s, news))

    def _tell_gateway(self, message: ToGateway) -> None:
        self.gateway.send(self._session.seal(TO_GATEWAY.encode(message)))


def _log_news(message: ToWorker) -> None:
    if isinstance(message, PeerLost):
        say, event = (log.info, "peer left") if message.has_left else (log.warning, "peer lost")
        say(event, worker=message.worker_id, instance=message.instance)
    elif isinstance(message, Assign):
        worker = "" if message.prefill is None else message.prefill.worker_id
        log.debug("request assigned", request_id=message.request_id, attempt=message.attempt, prefill=worker)
    elif isinstance(message, CancelRequest):
        ids = {"request_id": message.request_id, "attempt": message.attempt}
        log.debug("request cancelled", **ids, choice=message.choice)
