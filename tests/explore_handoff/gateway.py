"""The gateway process in virtual time: the product's Control on a simulated socket, called at regular intervals."""

from collections.abc import Callable
from typing import cast

import zmq

from gateway.routing.control import Control
from gateway.routing.control_socket import ControlSocket
from gateway.routing.membership import Membership
from gateway.routing.punctuality import TICK_S, Punctuality
from gateway.routing.retries import RetryRules
from tests.explore_handoff.sockets import SimulatedRouter
from tests.explore_handoff.workers import GATEWAY_ENDPOINT, Surroundings

TURN_S = 0.0005
LAUNCH_DEADLINE_S = 3.0


class RoutedMessages:
    """Stands for ControlSocket."""

    is_full = False

    def __init__(self, router: SimulatedRouter) -> None:
        self._router = router

    def start(self, on_message: Callable[[bytes, bytes], None]) -> None:
        """The process hands on what arrives."""

    def send(self, identity: bytes, raw: bytes) -> bool:
        """See ControlSocket."""
        try:
            self._router.send_multipart([identity, raw])
        except zmq.ZMQError:  # nobody of this name is connected
            return False
        return True

    def close(self) -> None:
        """The process ends."""


class GatewayProcess:
    """`on_turn` is called after whatever it does."""

    def __init__(self, world: Surroundings, number: int, on_turn: Callable[[], None]) -> None:
        self.world = world
        self.name = f"gateway#{number}"
        self.alive = True
        self.paused_until = 0.0
        self._on_turn = on_turn
        self._router = SimulatedRouter(world.network, self)
        self._router.bind(GATEWAY_ENDPOINT)
        rules = RetryRules(max_attempts=3, wait_s=4.0)
        socket = cast(ControlSocket, RoutedMessages(self._router))
        membership = Membership(number, LAUNCH_DEADLINE_S, hash_key=b"key")
        self.control = Control(socket, world.agenda.clock, world.scenario.pairing, rules, membership)
        self._punctuality = Punctuality(world.agenda.now)
        self._is_turning = False
        world.agenda.after(TICK_S, self._tick)

    def wake(self) -> None:
        """Something has arrived."""
        if not self._is_turning:
            self._is_turning = True
            self.world.agenda.after(TURN_S * self.world.rng.random(), self._turn)

    def pause(self, seconds: float) -> None:
        """It does nothing for a while; what arrives waits."""
        self.paused_until = self.world.agenda.now + seconds
        self.world.agenda.at(self.paused_until, self.wake)

    def end(self) -> None:
        """The process is gone; its clients and workers see their connections end."""
        self.alive = False
        self.world.network.end_of(self, silently=False)

    @property
    def is_paused(self) -> bool:
        """Whether it does nothing now."""
        return self.world.agenda.now < self.paused_until

    def _turn(self) -> None:
        self._is_turning = False
        if not self.alive or self.is_paused:
            return
        while True:
            try:
                identity, raw = self._router.recv_multipart()
            except zmq.Again:
                break
            self.control._on_raw(identity, raw)
        self._on_turn()

    def _tick(self) -> None:
        """As Control's own ticker does, which needs an asyncio loop."""
        if not self.alive:
            return
        now = self.world.agenda.now
        if self.is_paused:
            self.world.agenda.at(self.paused_until, self._tick)
            return
        self.control.look(is_punctual=self._punctuality.look(now))
        self._on_turn()
        self.world.agenda.after(self._punctuality.pause(now, self.control.membership.next_silent_at), self._tick)
