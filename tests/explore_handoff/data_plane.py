"""Frames between processes: a transfer backend on a network that may do everything that its kind of network may do.

    send -> queued (a view of page memory) -> departs: read for the last time -> arrives at the inbox -> lands

An `ordered` backend has one connection to each peer. With several connections, frames overtake one another. Frames may
be lost, repeated or damaged.
"""

import mmap
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.errors import WireError
from tests.explore_handoff.network import REDIAL_S, Host, Network
from transfer.interfaces import Part, Pollable

SCHEME = "frames://"
DEPART_S = 0.0005
INBOX_FRAMES = 16  # of a receiver, those on the way among them; beyond it, frames wait at the sender


@dataclass(frozen=True)
class FrameFate:
    """How likely a frame is lost, comes a second time, or is damaged; and whether frames keep their order."""

    ordered: bool
    lost: float = 0.0
    twice: float = 0.0
    damaged: float = 0.0


@dataclass(eq=False)
class Transit:
    """A frame that was given to the wire. `check` raises if the pages that it shows are not the sender's any more."""

    parts: tuple[Part, ...]
    sent: bytes
    check: Callable[[], None]
    done: bool = False


@dataclass(eq=False)
class DataConnection:
    """From one sender to one receiver's endpoint."""

    source: Host
    endpoint: str
    waiting: deque[Transit] = field(default_factory=deque)
    num_cuts: int = 0  # with each cut, what was on the way is lost
    noticed: int = 0  # the cuts that the sender knows of
    is_closed: bool = False
    last_at: float = 0.0
    is_departing: bool = False


class DataPlane:
    """Every data connection of one world."""

    def __init__(self, network: Network, fate: FrameFate, rng: random.Random) -> None:
        self.network = network
        self.fate = fate
        self.connections: list[DataConnection] = []
        self.is_calm = False  # nothing is lost, doubled or damaged any more
        self._rng = rng
        self._bound: dict[str, SimulatedArrivals] = {}

    def bind(self, arrivals: "SimulatedArrivals") -> str:
        """Where frames for `arrivals` are sent. A worker that is started again gets the port of the one before."""
        endpoint = f"{SCHEME}{arrivals.owner.name.partition('#')[0]}"
        self._bound[endpoint] = arrivals
        return endpoint

    def connect(self, source: Host, endpoint: str) -> DataConnection:
        """A new connection; nobody need answer yet."""
        connection = DataConnection(source, endpoint)
        self.connections.append(connection)
        return connection

    def send(self, connection: DataConnection, transit: Transit) -> None:
        """Queues a frame."""
        connection.waiting.append(transit)
        self._depart_soon(connection, DEPART_S * self._rng.random())

    def close(self, connection: DataConnection) -> None:
        """What has not departed is forgotten, in a while; what is on the way arrives."""
        connection.is_closed = True
        self.connections.remove(connection)
        forgotten = list(connection.waiting)
        connection.waiting.clear()

        def forget() -> None:
            for transit in forgotten:
                transit.done = True
            connection.source.wake()

        self.network.agenda.after(0.02 * self._rng.random(), forget)

    def cut(self, connection: DataConnection) -> None:
        """What is on the way is lost; what waits leaves by a new connection."""
        connection.num_cuts += 1
        connection.last_at = 0.0
        cuts = connection.num_cuts

        def notice() -> None:
            connection.noticed = max(connection.noticed, cuts)
            connection.source.wake()

        self.network.agenda.after(self._rng.choice((0.0, 0.02, 0.5)) * self._rng.random(), notice)
        self._depart_soon(connection, REDIAL_S * (1 + 9 * self._rng.random()))

    def unbind(self, arrivals: "SimulatedArrivals") -> None:
        """Nobody reaches `arrivals` any more."""
        gone = [endpoint for endpoint, each in self._bound.items() if each is arrivals]
        for connection in [each for each in self.connections if each.endpoint in gone]:
            self.cut(connection)
        for endpoint in gone:
            del self._bound[endpoint]

    def end_of(self, host: Host) -> None:
        """A process has ended."""
        for connection in [each for each in self.connections if each.source is host]:
            connection.is_closed = True
            self.connections.remove(connection)
        self._bound = {endpoint: each for endpoint, each in self._bound.items() if each.owner is not host}

    def _depart_soon(self, connection: DataConnection, wait_s: float) -> None:
        if not connection.is_departing:
            connection.is_departing = True
            self.network.agenda.after(wait_s, lambda: self._depart(connection))

    def _depart(self, connection: DataConnection) -> None:
        """The head of the queue leaves, if the way is free."""
        connection.is_departing = False
        if connection.is_closed or not connection.waiting:
            return
        source, arrivals, now = connection.source, self._bound.get(connection.endpoint), self.network.agenda.now
        if arrivals is None:
            self._depart_soon(connection, REDIAL_S)
            return
        opens = self.network.weather.parted_until(source.name, arrivals.owner.name, now)
        if opens > now or arrivals.is_full:
            self._depart_soon(connection, max(opens - now, REDIAL_S))
            return
        transit = connection.waiting.popleft()
        transit.check()
        parts = tuple(memoryview(bytes(part)) for part in transit.parts)
        assert b"".join(parts) == transit.sent, "pages have changed while they were being sent"
        transit.done = True
        source.wake()
        self._travel(connection, arrivals, parts)
        if connection.waiting:
            self._depart_soon(connection, DEPART_S * self._rng.random())

    def _travel(self, connection: DataConnection, arrivals: "SimulatedArrivals", parts: tuple[memoryview, ...]) -> None:
        network, fate, here, there = self.network, self.fate, connection.source, arrivals.owner
        now, raw = network.agenda.now, b"".join(parts)
        moment = now + network.weather.delay(here.name, there.name, now)
        if fate.ordered:
            moment = connection.last_at = max(connection.last_at, moment)
        if not self.is_calm and self._rng.random() < fate.lost:
            network.story.fault(now, here.name, "frame lost", f"never reaches {there.name}", raw)
            return
        if not self.is_calm and self._rng.random() < fate.damaged:
            parts = self._damaged(parts)
            network.story.fault(now, here.name, "frame damaged", f"on the way to {there.name}", raw)
        network.story.tell(now, here.name, f"-> {there.name}", raw)
        self._arrive_at(moment, connection, arrivals, parts)
        if not self.is_calm and self._rng.random() < fate.twice:
            later = moment + self._rng.choice((0.0, 0.01, 0.3)) * self._rng.random()
            network.story.fault(now, here.name, "frame twice", f"to {there.name}, again at {later:.4f}", raw)
            self._arrive_at(later, connection, arrivals, parts)

    def _arrive_at(
        self, moment: float, connection: DataConnection, arrivals: "SimulatedArrivals", parts: tuple[memoryview, ...]
    ) -> None:
        network, num_cuts, here, there = self.network, connection.num_cuts, connection.source, arrivals.owner

        arrivals.num_on_way += 1

        def arrive() -> None:
            arrivals.num_on_way -= 1
            if not there.alive or arrivals.is_closed:
                return
            if connection.num_cuts != num_cuts:
                network.story.fault(network.agenda.now, here.name, "frame lost", "with the connection", b"".join(parts))
                return
            opens = network.weather.parted_until(here.name, there.name, network.agenda.now)
            if opens > network.agenda.now:
                arrivals.num_on_way += 1
                network.agenda.at(opens, arrive)
                return
            arrivals.inbox.append(parts)
            there.wake()

        network.agenda.at(moment, arrive)

    def _damaged(self, parts: tuple[memoryview, ...]) -> tuple[memoryview, ...]:
        """One bit of the frame is turned."""
        index = self._rng.randrange(len(parts))
        turned = bytearray(parts[index])
        if turned:
            turned[self._rng.randrange(len(turned))] ^= 1 << self._rng.randrange(8)
        return (*parts[:index], memoryview(bytes(turned)), *parts[index + 1 :])


class SimulatedWire:
    """See transfer.interfaces.Wire. `held` names what a frame shows, as a check that it is still the sender's."""

    def __init__(self, plane: DataPlane, owner: Host, held: Callable[[], Callable[[], None]]) -> None:
        self._plane = plane
        self._owner = owner
        self._held = held
        self._connections: dict[int, DataConnection] = {}
        self._told: dict[int, int] = {}  # cuts that were told

    def connect(self, instance: int, endpoint: str) -> None:
        """See Wire."""
        if not endpoint.startswith(SCHEME):
            raise WireError(f"data address {endpoint!r}, expected one that begins with {SCHEME}")
        self._connections[instance], self._told[instance] = self._plane.connect(self._owner, endpoint), 0

    def send(self, instance: int, parts: Sequence[Part]) -> Transit:
        """See Wire."""
        held = self._held()
        # A view of page memory; else the payload was gathered, and no page is read later.
        is_view = any(isinstance(part, memoryview) and isinstance(part.obj, mmap.mmap) for part in parts)
        transit = Transit(tuple(parts), b"".join(parts), held if is_view else lambda: None)
        self._plane.send(self._connections[instance], transit)
        return transit

    def broken(self) -> list[int]:
        """See Wire."""
        news = {instance: each.noticed for instance, each in self._connections.items()}
        broken = [instance for instance, noticed in news.items() if noticed > self._told[instance]]
        self._told.update(news)
        return broken

    def disconnect(self, instance: int) -> None:
        """See Wire."""
        self._plane.close(self._connections.pop(instance))

    def close(self) -> None:
        """See Wire."""
        for instance in list(self._connections):
            self.disconnect(instance)


class SimulatedArrivals:
    """See transfer.interfaces.Arrivals."""

    backend = "simulated"

    def __init__(self, plane: DataPlane, owner: Host) -> None:
        self.owner = owner
        self.inbox: deque[tuple[memoryview, ...]] = deque()
        self.num_on_way = 0
        self.is_closed = False
        self._plane = plane
        self.address = plane.bind(self)

    @property
    def is_ordered(self) -> bool:
        """See Arrivals."""
        return self._plane.fate.ordered

    @property
    def is_full(self) -> bool:
        """Whether frames have to wait at their senders."""
        return len(self.inbox) + self.num_on_way >= INBOX_FRAMES

    def receive(self) -> Sequence[memoryview] | None:
        """See Arrivals."""
        assert not self.is_closed, "somebody reads from a socket that is closed"
        return self.inbox.popleft() if self.inbox else None

    def pollables(self) -> list[Pollable]:
        """Its process is woken."""
        return []

    def meet(self, instance: int, export: bytes) -> None:
        """See Arrivals."""

    def lose(self, instance: int) -> None:
        """See Arrivals."""

    def close(self) -> None:
        """See Arrivals."""
        self.is_closed = True
        self._plane.unbind(self)
