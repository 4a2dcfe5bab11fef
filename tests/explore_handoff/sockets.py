"""Replaces ZMQ for the product's Dealer and Router: a context with DEALER and ROUTER sockets on the simulated network.

It has only the calls that these two classes use.
"""

import struct
from collections import deque

import zmq

from tests.explore_handoff.network import Connection, Host, Network

AGAIN = zmq.Again()  # made once: it is raised at each turn of a loop
TELL_S = 0.005  # until a monitor tells of a connection, at most


class SimulatedContext:
    """The context of one process. `is_full` says whether a queue takes nothing now, which loses the message."""

    def __init__(self, network: Network, owner: Host) -> None:
        self._network = network
        self._owner = owner
        self._dealers: list[SimulatedDealer] = []
        self.num_to_refuse = 0  # of the next messages that a dealer sends

    def socket(self, kind: int) -> "SimulatedDealer | SimulatedRouter":
        """A socket that is not yet connected or bound."""
        if kind == zmq.ROUTER:
            return SimulatedRouter(self._network, self._owner)
        assert kind == zmq.DEALER
        dealer = SimulatedDealer(self._network, self._owner, self)
        self._dealers.append(dealer)
        return dealer


class SimulatedDealer:
    """Waits with what it has to say until there is a connection; loses nothing by itself."""

    def __init__(self, network: Network, owner: Host, context: SimulatedContext) -> None:
        self.owner = owner
        self.identity = b""
        self.endpoint = ""
        self.closed = False
        self.connection: Connection | None = None
        self._network = network
        self._context = context
        self._inbox: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()
        self._monitor = SimulatedMonitor(network)

    def get_monitor_socket(self, events: int) -> "SimulatedMonitor":
        """Tells of each connection that was made."""
        assert events & zmq.EVENT_HANDSHAKE_SUCCEEDED
        return self._monitor

    def disable_monitor(self) -> None:
        """It is closed by whoever has it."""

    def setsockopt(self, option: int, value: int | bytes) -> None:
        """Only the name matters."""
        if option == zmq.ROUTING_ID:
            assert isinstance(value, bytes)
            self.identity = value

    def connect(self, endpoint: str) -> None:
        """Begins to dial."""
        self.endpoint = endpoint
        self._network.dial(self)

    def send(self, raw: bytes, flags: int = 0) -> None:
        """Queues a message, or raises zmq.Again."""
        if self._context.num_to_refuse:
            self._context.num_to_refuse -= 1
            self._network.story.fault(self._network.agenda.now, self.owner.name, "full", "a queue takes nothing", raw)
            raise AGAIN.with_traceback(None)
        if self.connection is None:
            self._unsent.append(raw)
        else:
            self.connection.up(raw)

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        """The next message, or zmq.Again."""
        assert not self.closed, "somebody reads from a socket that is closed"
        if not self._inbox:
            raise AGAIN.with_traceback(None)
        return [self._inbox.popleft()]

    def close(self, linger: int | None = None) -> None:
        """Without a linger, what is on the way may be lost."""
        if self.closed:
            return
        self.closed = True
        if self.connection is not None:
            self._network.close(self.connection, is_abrupt=not linger and self._network.weather.rng.random() < 0.5)

    # ---- for the network ----

    def connected(self, connection: Connection) -> None:
        """What has waited goes now."""
        self._monitor.tell(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        while self._unsent:
            connection.up(self._unsent.popleft())

    def take(self, raw: bytes) -> None:
        """A message has arrived."""
        self._inbox.append(raw)


class SimulatedMonitor:
    """What has happened to a socket's connections, told a little later."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._events: deque[tuple[float, int]] = deque()

    def setsockopt(self, option: int, value: int) -> None:
        """Nothing matters."""

    def tell(self, event: int) -> None:
        """It has happened now."""
        lag_s = TELL_S * self._network.weather.rng.random()
        self._events.append((self._network.agenda.now + lag_s, event))

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        """The next event, or zmq.Again."""
        if not self._events or self._events[0][0] > self._network.agenda.now:
            raise AGAIN.with_traceback(None)
        return [struct.pack("=hi", self._events.popleft()[1], 0), b""]

    def close(self, linger: int | None = None) -> None:
        """Nothing is asked any more."""


class SimulatedRouter:
    """Knows its peers by the names with which they dialled."""

    def __init__(self, network: Network, owner: Host) -> None:
        self.owner = owner
        self.peers: dict[bytes, Connection] = {}
        self._network = network
        self._endpoint = ""
        self._is_closed = False
        self._inbox: deque[tuple[bytes, bytes]] = deque()

    def setsockopt(self, option: int, value: int) -> None:
        """Mandatory, handing over, and never full."""

    def bind(self, endpoint: str) -> None:
        """Port 0 is one of the network's choice: that of the process before, if one was started again."""
        self._endpoint = f"tcp://{self.owner.name.partition('#')[0]}:1"
        self._network.bind(self, self._endpoint)

    def getsockopt(self, option: int) -> bytes:
        """Where it is bound."""
        assert option == zmq.LAST_ENDPOINT
        return self._endpoint.encode()

    def send_multipart(self, parts: list[bytes], flags: int = 0) -> None:
        """To the peer of this name; ZMQError when there is none."""
        connection = self.peers.get(parts[0])
        if connection is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        connection.down(parts[1])

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        """Name and message, or zmq.Again."""
        assert not self._is_closed, "somebody reads from a socket that is closed"
        if not self._inbox:
            raise AGAIN.with_traceback(None)
        return list(self._inbox.popleft())

    def close(self, linger: int | None = None) -> None:
        """Whoever is connected sees the connection end."""
        self._is_closed = True
        self._network.unbind(self)

    # ---- for the network ----

    def take(self, identity: bytes, raw: bytes) -> None:
        """A message has arrived."""
        self._inbox.append((identity, raw))
