"""Connections between processes, as TCP under ZMQ gives them: in order, late, sometimes lost with what is in flight.

    dealer --> (unsent while there is no connection) --> connection --> router's inbox --> its process wakes

A partition holds everything back. A cut loses the messages in flight. Each end notices the cut at its own time, and
messages sent until then are lost too. When a dealer connects again, the new connection replaces the old one.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.story import NUMBERS, Story, kind_of

DIAL_S = 0.001
REDIAL_S = 0.05  # at least; at most ten times as long


class Host(Protocol):
    """A process, as the network knows it."""

    name: str
    alive: bool

    def wake(self) -> None:
        """There is something to do."""
        ...


class DialingEnd(Protocol):
    """A dealer: it dials, and waits with what it has to say while there is no connection."""

    owner: Host
    identity: bytes
    endpoint: str
    closed: bool
    connection: "Connection | None"

    def connected(self, connection: "Connection") -> None:
        """What has waited goes now."""
        ...

    def take(self, raw: bytes) -> None:
        """A message has arrived."""
        ...


class BoundEnd(Protocol):
    """A router: it knows its peers by the names with which they dialled."""

    owner: Host
    peers: dict[bytes, "Connection"]

    def take(self, identity: bytes, raw: bytes) -> None:
        """A message has arrived."""
        ...


@dataclass
class Weather:
    """How messages fare. `slow` multiplies the delay between two processes until a moment."""

    rng: random.Random
    delay_s: float  # at most, on a good day
    slow: dict[frozenset[str], tuple[float, float]] = field(default_factory=dict)
    parted: dict[frozenset[str], float] = field(default_factory=dict)  # until when

    def delay(self, here: str, there: str, now: float) -> float:
        """How long the next message takes."""
        factor, until = self.slow.get(frozenset((here, there)), (1.0, 0.0))
        return self.rng.random() * self.delay_s * (factor if now < until else 1.0)

    def is_bad(self, now: float) -> bool:
        """Whether anybody is parted or slowed."""
        return any(until > now for until in self.parted.values()) or any(until > now for _, until in self.slow.values())

    def parted_until(self, here: str, there: str, now: float) -> float:
        """When a message may pass: `now`, unless a partition lies between."""
        until = self.parted.get(frozenset((here, there)), 0.0) if self.parted else 0.0
        return max(now, until)


@dataclass(eq=False)
class Connection:
    """One TCP connection. It is `whole` until it is cut; `on_way` counts messages that have not arrived."""

    network: "Network"
    dealer: DialingEnd
    router: BoundEnd
    whole: bool = True
    on_way: int = 0
    _up_at: float = 0.0  # when the newest message arrives
    _down_at: float = 0.0

    def up(self, raw: bytes) -> None:
        """From the dealer to the router."""
        self._up_at = self._carry(raw, self._up_at, self.dealer.owner, self.router.owner, self._arrive_up)

    def down(self, raw: bytes) -> None:
        """From the router to the dealer."""
        self._down_at = self._carry(raw, self._down_at, self.router.owner, self.dealer.owner, self._arrive_down)

    def _carry(self, raw: bytes, last: float, here: Host, there: Host, arrive: Callable[[bytes], None]) -> float:
        network = self.network
        if not self.whole:
            network.lost(here, there, raw)
            return last
        now = network.agenda.now
        moment = max(last, now + network.weather.delay(here.name, there.name, now))
        network.story.tell(now, here.name, f"-> {there.name}", raw)
        self.on_way += 1

        def land() -> None:
            moment = network.weather.parted_until(here.name, there.name, network.agenda.now)
            if self.whole and there.alive and moment > network.agenda.now:
                network.agenda.at(moment, land)
                return
            self.on_way -= 1
            if self.whole and there.alive:
                arrive(raw)
            else:
                network.lost(here, there, raw)

        network.agenda.at(moment, land)
        return moment

    def _arrive_up(self, raw: bytes) -> None:
        self.router.take(self.dealer.identity, raw)
        self.router.owner.wake()

    def _arrive_down(self, raw: bytes) -> None:
        if not self.dealer.closed:
            self.dealer.take(raw)
            self.dealer.owner.wake()


class Network:
    """Every connection of one world."""

    def __init__(self, agenda: Agenda, story: Story, weather: Weather) -> None:
        self.agenda = agenda
        self.story = story
        self.weather = weather
        self.bound: dict[str, BoundEnd] = {}
        self.connections: list[Connection] = []

    def bind(self, router: BoundEnd, endpoint: str) -> None:
        """`router` is reached at `endpoint`."""
        self.bound[endpoint] = router

    def unbind(self, router: BoundEnd) -> None:
        """Nobody reaches `router` any more."""
        self.bound = {endpoint: each for endpoint, each in self.bound.items() if each is not router}
        for connection in [each for each in self.connections if each.router is router]:
            self.cut(connection, *(self.weather.rng.random() * 0.05 for _ in range(2)))

    def dial(self, dealer: DialingEnd, wait_s: float = DIAL_S) -> None:
        """Connects once somebody answers; tries until then."""

        def attempt() -> None:
            if dealer.closed or dealer.connection is not None:
                return
            router, now = self.bound.get(dealer.endpoint), self.agenda.now
            if (
                router is None
                or not router.owner.alive
                or self.weather.parted_until(dealer.owner.name, router.owner.name, now) > now
            ):
                self.dial(dealer, self._backoff())
                return
            connection = Connection(self, dealer, router)
            self.connections.append(connection)
            router.peers[dealer.identity] = connection
            dealer.connection = connection
            dealer.connected(connection)

        self.agenda.after(wait_s, attempt)

    def cut(self, connection: Connection, dealer_notices_s: float = 0.0, router_notices_s: float = 0.0) -> None:
        """What is on the way is lost, and so is what an end sends before it notices."""
        if not connection.whole:
            return
        connection.whole = False
        self.connections.remove(connection)
        self.agenda.after(dealer_notices_s, lambda: self._dealer_notices(connection))
        self.agenda.after(router_notices_s, lambda: self._router_notices(connection))

    def close(self, connection: Connection, is_abrupt: bool) -> None:
        """The dealer has closed. What it said before arrives, unless that was `is_abrupt`."""
        if is_abrupt:
            self.cut(connection)
            return
        router = connection.router

        def end() -> None:
            if connection.whole and connection.on_way:
                self.agenda.after(REDIAL_S, end)
            else:
                self.cut(connection)

        self.agenda.after(self.weather.delay(connection.dealer.owner.name, router.owner.name, self.agenda.now), end)

    def end_of(self, host: Host, silently: bool) -> None:
        """A process has ended; `silently` when its machine is gone too, so that nobody is told."""
        for connection in [each for each in self.connections if host in (each.dealer.owner, each.router.owner)]:
            notices_s = 1e9 if silently else self.weather.rng.random() * 0.05
            self.cut(connection, notices_s, notices_s)
        self.bound = {endpoint: router for endpoint, router in self.bound.items() if router.owner is not host}

    def lost(self, here: Host, there: Host, raw: bytes) -> None:
        """A message is gone for good."""
        if here.alive and there.alive and kind_of(raw) not in ("Heartbeat", NUMBERS):
            self.story.fault(self.agenda.now, here.name, "lost", f"never reaches {there.name}", raw)

    def _dealer_notices(self, connection: Connection) -> None:
        dealer = connection.dealer
        if dealer.connection is connection:
            dealer.connection = None
            if dealer.owner.alive and not dealer.closed:
                self.dial(dealer, self._backoff())

    def _router_notices(self, connection: Connection) -> None:
        peers, identity = connection.router.peers, connection.dealer.identity
        if peers.get(identity) is connection:
            del peers[identity]

    def _backoff(self) -> float:
        return REDIAL_S * (1 + 9 * self.weather.rng.random())
