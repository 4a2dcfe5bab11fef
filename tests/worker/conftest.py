"""A worker loop on a virtual clock and real sockets; a test plays the gateway."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import (
    TO_GATEWAY,
    TO_WORKER,
    DeclaredLost,
    Heartbeat,
    Refused,
    Register,
    RegisterAgain,
    Role,
    ToGateway,
    ToWorker,
    Welcome,
    WorkerAddress,
)
from protocol.worker_facts import KvPages, WorkerStats
from runtime.bus import Dealer, Router, Wake
from runtime.process_life import StatusPipe, StopSignal
from runtime.session import Envelope, Session, open_envelope
from scheduler.planning.kv_manager import CacheKey, KvManager
from scheduler.planning.planner import Planner
from tests.doubles.clock import VirtualClock
from tests.runtime.rebinding import bound_again
from tests.worker.stopping import Stop
from worker.gateway_link import GatewayLink
from worker.loop import WorkerLoop
from worker.parts import PeerLink, Surroundings
from worker.requests import Outbox

STATS = WorkerStats(KvPages(total=1, free=1), running=0, waiting=0)
REGISTER = Register(
    WorkerAddress("unified-0", 5), Role.UNIFIED, 1, "host", KvLayout.uniform(1, 1, 1, 1, "float32"),
    Fingerprint("print"), 9, 9, 9, 9, STATS, "",
)  # fmt: skip
IDENTITY = b"unified-0#5"


class Core:
    """A core that does nothing but call `on_step`."""

    def __init__(self, on_step: Callable[[], None]) -> None:
        self.outbox = Outbox()
        self.busy = False
        self.loop: Any = SimpleNamespace(broken="", oldest_launch=0, busy=False)
        self.num_resets = 0
        self.kv_manager = KvManager(9, 64, max_requests=4, max_context=512, caches=True)
        self._on_step = on_step

    def on_gateway(self, message: ToWorker) -> None:
        return

    def reset(self) -> None:
        self.num_resets += 1

    @property
    def planner(self) -> Planner:
        return cast(Planner, SimpleNamespace(kv_manager=self.kv_manager))

    def turn(self) -> bool:
        self._on_step()
        return False

    def stats(self) -> WorkerStats:
        return STATS


class Peers(PeerLink):
    """Notes what is asked of it from the reset of `core` on."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._core = core

    def flush(self) -> None:
        self._note("flush")

    def forget_all(self) -> None:
        self._note("forget_all")

    def _note(self, name: str) -> None:
        if self._core.num_resets:
            self.calls.append(name)


class Bench:
    """One worker loop on a virtual clock; `play` is the gateway, called at every turn with what has arrived."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        play: Callable[["Bench", list[ToGateway]], None],
        device: str = "cpu",
    ) -> None:
        self._context, self.endpoint = context, ""  # of the lost connection
        self.router = Router(context, "127.0.0.1")
        self.clock = VirtualClock()
        self.session = Session(0)  # the gateway's end of the newest
        self.core = Core(lambda: play(self, self.heard()))
        self.peers = Peers(self.core)
        self.num_ready = 0
        self.status = StatusPipe()  # of no launcher
        self._stop, self._wake = Stop(), Wake()
        self._dealer = Dealer(context, self.router.endpoint, IDENTITY)
        self.loop = WorkerLoop(
            self.core,
            self.peers,
            GatewayLink(self._dealer, self.clock),
            replace(REGISTER, device=device),
            Surroundings(cast(StopSignal, self._stop), self._wake, self.clock, self.status),
            self._ready,
        )

    def heard(self) -> list[ToGateway]:
        """What has arrived, in whatever session."""
        envelopes = [open_envelope(raw) for _, raw in self.router.receive()]
        for envelope in envelopes:
            if envelope.opens:
                self.session = Session(envelope.session_number)
            self.session.accept(envelope)
        return [TO_GATEWAY.decode(envelope.body) for envelope in envelopes]

    def send(self, message: ToWorker) -> None:
        """The gateway says something in the newest session; RegisterAgain, Refused and DeclaredLost outside."""
        body = TO_WORKER.encode(message)
        if isinstance(message, RegisterAgain | Refused | DeclaredLost):
            raw = Envelope(self.session.number, 0, 0, body).sealed()
        else:
            raw = self.session.seal(body)
        assert self.router.send(IDENTITY, raw)

    def advance_if_member(self) -> None:
        """Time for a heartbeat. Until it joins, a worker has all the time that messages need."""
        if self.loop._is_member:
            self.clock.advance(0.3)

    def lose_connection(self, linger_ms: int = 0) -> None:
        """The gateway's end of the connection is gone, once what was sent has left or this time is over."""
        self.endpoint = self.router.endpoint
        self.router.socket.close(linger_ms)
        self.router.socket = self._context.socket(zmq.ROUTER)  # which nobody dials

    def connect_again(self) -> None:
        """The gateway listens again where it did before."""
        self.router.close()
        self.router.socket = bound_again(self._context, zmq.ROUTER, self.endpoint)

    def stop(self) -> None:
        self._stop.set()

    def served(self) -> "Bench":
        """The same, after its loop has run and ended."""
        self.loop.run()
        self.close()
        return self

    def close(self) -> None:
        self._dealer.close()
        self.router.close()
        self._stop.close()
        self._wake.close()

    def _ready(self) -> None:
        self.num_ready += 1


class Welcoming:
    """Plays a gateway that gives these answers to each Register. `on_beat` is called with each heartbeat."""

    def __init__(self, on_beat: Callable[[Bench, Heartbeat], None], *answers: ToWorker) -> None:
        self.answers: Sequence[ToWorker] = answers or (Welcome(1),)
        self.seen: list[ToGateway] = []
        self.numbers: list[int] = []  # of the session of each Register
        self.num_beats = 0
        self._on_beat = on_beat

    def __call__(self, bench: Bench, arrived: list[ToGateway]) -> None:
        bench.advance_if_member()
        for message in arrived:
            self.seen.append(message)
            if isinstance(message, Register):
                self.numbers.append(bench.session.number)
                for answer in self.answers:
                    bench.send(answer)
            elif isinstance(message, Heartbeat):
                self.num_beats += 1
                self._on_beat(bench, message)


def keep_cached(kv_manager: KvManager, key: CacheKey, num_tokens: int) -> None:
    """A prompt was computed, and its request has ended."""
    held = kv_manager.admit(num_tokens, num_tokens, 1, key=key)
    assert held is not None
    kv_manager.keep(held[0], key)
    kv_manager.release(held[0])


@pytest.fixture
def context() -> Iterator[Any]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)
