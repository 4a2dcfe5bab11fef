"""The process loop of every worker: poll, hand messages to the core, give it a turn, send its outbox.

    gateway <-> GatewayLink <-> core.on_gateway / outbox.gateway
    peers   <-> PeerLink    <-> core.on_peer / outbox.prefill, outbox.decode
    ranks   <-> GroupLink   <-> the planner's Agreement

It joins the gateway, sends heartbeats, and leaves on a signal (departure.py). This is one life of a worker (lives.py):
it ends early if the gateway declares the worker lost while its process lives.

    serves --DeclaredLost--> drops all requests, closes its links --its launches are over--> LOST
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import zmq

from protocol.errors import GroupBroken, PrefillQueueFull, QueueFull
from protocol.messages_gateway import (
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
    ToWorker,
    Welcome,
)
from protocol.worker_facts import WorkerStats
from runtime.log import get_log
from runtime.session import SessionLost
from scheduler.execution.streams import DeviceBroken, first_line
from worker.departure import Departure, State
from worker.gateway_link import GatewayLink
from worker.parts import Core, Ending, PeerLink, RefusedByGateway, Surroundings, WorkerBroken

HEARTBEAT_S = 0.25
REGISTER_AGAIN_S = 1.0
DRAIN_S = 60.0  # for launches to end, once the worker is declared lost; a longer one hangs
IDLE_POLL_S = 0.05  # how often a loop turns that holds pages, for transports that cannot be polled for "done reading"

log = get_log("worker")


@dataclass
class _OldestLaunch:
    """The oldest launch in flight at the last turn; ticket 0: there was none."""

    ticket: int = 0
    since: float = 0.0

    def look(self, ticket: int, now: float) -> None:
        """What is the oldest one now."""
        if ticket != self.ticket:
            self.ticket, self.since = ticket, now

    def age_s(self, now: float) -> float:
        """How long it has been the oldest one."""
        return now - self.since if self.ticket else 0.0


class _Sockets:
    """What the loop waits for. The poller stays the same as long as they do."""

    def __init__(self) -> None:
        self._watched: tuple[Any, ...] = ()
        self._poller = zmq.Poller()

    def poll(self, timeout_ms: int, *watched: Any) -> None:
        """Waits until one of these sockets and descriptors has something to read."""
        if watched != self._watched:
            self._watched, self._poller = watched, zmq.Poller()
            for socket in watched:
                self._poller.register(socket, zmq.POLLIN)
        self._poller.poll(timeout_ms)


@dataclass
class WorkerLoop:
    """One life of a worker. `on_ready` is called when the gateway has admitted it."""

    core: Core
    link: PeerLink
    gateway: GatewayLink
    register: Register
    around: Surroundings
    on_ready: Callable[[], None]
    departure: Departure = field(default_factory=Departure)

    def __post_init__(self) -> None:
        self._is_member = False
        self._was_member = False  # in this life: before that, its peers are not heard
        self._drain_by: float | None = None  # it was declared lost, and its launches must end by then
        self._next_beat = self._next_register = 0.0
        self._oldest = _OldestLaunch()
        self._sockets = _Sockets()

    def run(self) -> Ending:
        """Serves until it has left, or is lost. Raises RefusedByGateway or Unavailable when it cannot join.

        Raises WorkerBroken, after telling the gateway that it leaves, when its launches fail one after the other, or
        its device or its group is broken.
        """
        self.gateway.begin()
        progressed = True
        while not self.ends():
            self._wait(progressed)
            progressed = self.turn()
            if self.is_over:
                return Ending.LOST
        self.leave()
        return Ending.LEFT

    @property
    def is_over(self) -> bool:
        """Whether this life is: the worker was declared lost, and nothing of it is in flight any more."""
        return self._drain_by is not None and not self.core.loop.busy

    def ends(self) -> bool:
        """Whether this worker ends now: after `leave`. Tells the gateway when it begins to leave."""
        was, is_known = self.departure.state, self._is_member and not self.gateway.is_cut_off
        rests = self.around.ranks.may_end(self.departure.is_free and not self._holds_pages)
        state = self.departure.look(self.around.stop.count, self.around.clock.now(), is_known=is_known, rests=rests)
        if was is State.SERVING and state is not was:
            address, stats = self.register.address, self.core.stats()
            self.gateway.send(Leaving(address.worker_id, address.instance))
            self.around.status.leaving(stats.running + stats.waiting, self.departure.bound_s)
        return state is State.ENDING

    def turn(self) -> bool:
        """Receives messages, gives the core a turn, sends its messages. Never waits. False if there was nothing to do.

        Raises as `run` does.
        """
        try:
            if self._drain_by is None:
                self._receive()
            if self._drain_by is not None:
                return self._drain(self._drain_by)
            progressed = self.core.turn()
            self._send()
        except (DeviceBroken, torch.AcceleratorError) as error:
            self._give_up()
            reason = f"{self.register.device} cannot compute any more: {first_line(error)}"
            raise WorkerBroken(reason, at_device=True) from error
        except GroupBroken as error:
            self._give_up()
            raise WorkerBroken(f"the ranks cannot go on together: {error.message}", at_device=True) from error
        if self.core.loop.broken:
            self._give_up()
            raise WorkerBroken(self.core.loop.broken)
        if not self._is_member and self.departure.state is State.SERVING:
            self.gateway.check_joining(self.around.clock.now())
        return progressed

    def leave(self) -> None:
        """Tells the gateway that this worker ends."""
        address = self.register.address
        self.gateway.send(Left(address.worker_id, address.instance))
        log.info("left", signal=self.around.stop.received.name if self.around.stop.received else "")

    def close(self) -> None:
        """Closes the links to peers and to the gateway. Idempotent."""
        self.link.close()
        self.gateway.close()

    def _give_up(self) -> None:
        """The gateway gives its requests to other workers at once. Of one that leaves, Left would mean a good end: the
        end of its connection says that it is lost."""
        if self.departure.state is State.SERVING:
            self.leave()

    def _drain(self, by: float) -> bool:
        """Takes what launches have computed for requests that are gone. Their rows and pages come free."""
        progressed, now = self.core.loop.turn(), self.around.clock.now()
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT_S
            self.around.status.alive(now)
        if now > by and self.core.loop.busy:
            raise WorkerBroken(f"a launch has not ended in {DRAIN_S:.0f} s", at_device=True)
        return progressed

    def _join_again(self) -> None:
        """Begins another session with the gateway. A worker that still joins gets no more time."""
        if self._is_member:
            self.gateway.begin()
        self.gateway.begin_session()
        self._is_member, self._next_register = False, 0.0

    def _wait(self, progressed: bool) -> None:
        spins = self.core.busy and self.register.device.startswith("cuda")  # a GPU cannot wake this thread
        timeout_s = 0.0 if progressed or spins else self._next_beat - self.around.clock.now()
        if timeout_s > IDLE_POLL_S and self._holds_pages:
            timeout_s = IDLE_POLL_S
        self._poll(int(max(0.0, timeout_s) * 1e3 + 0.5))
        self.around.wake.clear()
        self.around.stop.clear_wakeup()

    @property
    def _holds_pages(self) -> bool:
        """Whether something may happen that no socket tells. Without pages of requests or transfers, nothing can."""
        pages = self.core.planner.kv_manager.counts()
        return self.core.busy or bool(pages.owned or pages.reserved or pages.quarantined)

    def _poll(self, timeout_ms: int) -> None:
        around = self.around
        if self._drain_by is not None:
            self._sockets.poll(timeout_ms, around.wake.fd, around.stop.fd)
            return
        peers = self.link.pollables() if self._was_member else ()
        ours = (self.gateway.socket, around.wake.fd, around.stop.fd)
        self._sockets.poll(timeout_ms, *ours, *peers, *around.ranks.pollables())

    def _receive(self) -> None:
        for raw in self.gateway.receive():
            try:
                message = self.gateway.read(raw)
            except SessionLost as lost:
                log.warning("the session with the gateway is lost", why=f"the gateway {lost}")
                self._join_again()
            else:
                if message is not None:
                    self._on_gateway(message)
            if self._drain_by is not None:
                return
        if self._was_member:  # else what is cached may be from before a flush, as Welcome tells
            self.link.receive()
        self.around.ranks.receive()

    def _on_gateway(self, message: ToWorker) -> None:
        if isinstance(message, Refused | DeclaredLost | Leave):
            self._on_end(message)
            return
        if isinstance(message, Welcome | RegisterAgain):
            self._on_answer(message)
            return
        if isinstance(message, FlushCache):
            self.around.known.flushed()
            self.core.planner.kv_manager.flush()
            self.gateway.send(CacheFlushed(message.number))
            return

        _log_news(message)
        self.core.on_gateway(message)
        if isinstance(message, PeerLost):
            self.link.flush()
            self.link.forget(message.instance)

    def _on_answer(self, message: Welcome | RegisterAgain) -> None:
        kv_manager = self.core.planner.kv_manager
        if self.around.known.is_another(message):
            log.warning("gateway restarted", instance=message.gateway_instance)
            self.core.reset()
            self.link.flush()
            self.link.forget_all()
        if self.around.known.answered(message):
            kv_manager.flush()
        if isinstance(message, RegisterAgain):
            self._join_again()
            return

        kv_manager.report_to(message.hash_key)
        if not self._is_member:
            self._is_member = self._was_member = True
            kv_manager.news.tell_anew()
            self.on_ready()
        self.gateway.joined()

    def _on_end(self, message: Refused | DeclaredLost | Leave) -> None:
        if isinstance(message, Leave):
            self.departure.is_free = True
        elif self.departure.state is State.LEAVING:
            self._is_member = False  # its group has left, or its requests are elsewhere, so it ends, too
        elif isinstance(message, DeclaredLost) and self.register.place is None:
            self._on_lost(message)
        else:
            raise RefusedByGateway(message.reason)

    def _on_lost(self, message: DeclaredLost) -> None:
        """Drops all that it has, and lets go of peers' memory: they wait for that, and then use its pages again."""
        log.warning("declared lost", why=message.reason)
        self.core.reset()
        self.link.close()
        self._is_member, self._drain_by = False, self.around.clock.now() + DRAIN_S

    def _send(self) -> None:
        self.around.ranks.flush()  # first: they wait for this rank's step
        self.link.flush()
        now = self.around.clock.now()
        if not self._is_member and now >= self._next_register:  # before anything else is said in its session
            self._next_register = now + REGISTER_AGAIN_S
            self.gateway.send(replace(self.register, stats=self._stats()))

        outbox = self.core.outbox
        for message in outbox.gateway:
            self.gateway.send(message)
            if isinstance(message, RequestFailed):
                _log_failure(message)
        outbox.gateway.clear()

        self._oldest.look(self.core.loop.oldest_launch, now)
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT_S
            self.around.status.alive(now)
            if self._is_member:
                self._beat(now)
            self.gateway.tend(now, is_member=self._is_member)
            self.link.tick()
            self.around.ranks.tick()

    def _stats(self) -> WorkerStats:
        stats, refused = self.core.stats(), self.gateway.refusals.total + self.link.refusals.total
        connections = {
            f"refused_connections_{reason}": count for reason, count in self.around.refused_connections().items()
        }
        return replace(stats, counters={**stats.counters, **connections, "refused_messages": refused})

    def _beat(self, now: float) -> None:
        address = self.register.address
        news = self.core.planner.kv_manager.news.take()
        self.gateway.send(Heartbeat(address.worker_id, address.instance, self._stats(), self._oldest.age_s(now), news))


def _log_failure(message: RequestFailed) -> None:
    ids = {"request_id": message.request_id, "attempt": message.attempt}
    say = log.info if message.code in (QueueFull.code, PrefillQueueFull.code) else log.warning
    say("request failed", **ids, code=message.code, why=message.message)


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
