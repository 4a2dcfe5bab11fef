"""A deployment in one process with the gateway's own membership, pairing and retry. Only sockets and text are missing.

A test can kill workers between any two events. Messages that a worker had not sent by then are lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from gateway.routing.control import Control
from gateway.routing.control_socket import ControlSocket
from gateway.routing.members import WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.requests import Delivery
from gateway.routing.retries import RetryRules
from gateway.words.prompt import Prompt
from model.runner import Runner
from prefill.worker import PrefillWorker
from protocol.errors import BatonError
from protocol.messages_gateway import (
    Assign,
    FinishReason,
    Heartbeat,
    Left,
    Register,
    Role,
    SamplingParams,
    ToGateway,
    ToWorker,
)
from runtime.settings import GatewaySettings
from tests.cluster import Cluster, Worker
from tests.doubles.clock import VirtualClock
from tests.gateway.worker_ends import WorkerEnds
from unified.worker import UnifiedWorker

Loss = Literal["gone", "silent", "leaving"]  # how the gateway gets to know


@dataclass
class Client:
    """What a client gets: nothing after a finish or a failure, each token once and in order."""

    num_choices: int
    tokens: list[list[int]] = field(default_factory=list)
    finish: list[FinishReason | None] = field(default_factory=list)
    error: BatonError | None = None

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.num_choices)]
        self.finish = [None] * self.num_choices

    @property
    def is_done(self) -> bool:
        return self.error is not None or all(finish is not None for finish in self.finish)

    def on_tokens(self, delivery: Delivery) -> None:
        assert self.error is None and self.finish[delivery.choice] is None, "something follows the end"
        self.tokens[delivery.choice] += delivery.token_ids
        self.finish[delivery.choice] = delivery.finish

    def on_failed(self, error: BatonError) -> None:
        assert not self.is_done, "it fails once, and not when it is done"
        self.error = error


class Wires:
    """Control's socket: what it sends is taken at once. A worker whose connection is gone takes nothing."""

    is_full = False

    def __init__(self, ends: WorkerEnds, deliver: Callable[[bytes, ToWorker | None], bool]) -> None:
        self._ends, self._deliver = ends, deliver

    def start(self, on_message: Callable[[bytes, bytes], None]) -> None:
        """Nothing comes by itself."""

    def send(self, identity: bytes, raw: bytes) -> bool:
        return self._deliver(identity, self._ends.hear(identity, raw))

    def close(self) -> None:
        """Nothing to close."""


class Controlled(Cluster):
    """`watch()` is called whenever something has happened; it may kill."""

    def __init__(self, runner: Runner, topology: str, *, max_attempts: int = 3, **options: Any) -> None:
        self.clock = VirtualClock()
        options = {"page_size": 4, "chunk_size": 7, "num_pages": 256, **options}
        super().__init__(runner, topology, clock=self.clock, **options)
        self.clients: dict[str, Client] = {}
        self.watch: Callable[[], None] = lambda: None
        self.assigns: list[tuple[str, Assign]] = []  # (worker id, message)
        self._silent: set[bytes] = set()  # dead, and the gateway's sends to them do not fail
        self._ends = WorkerEnds()
        socket = cast(ControlSocket, Wires(self._ends, self._take))
        self.control = Control(socket, self.clock, "round_robin", RetryRules(max_attempts, 4.0), Membership(7))
        self._keys = {id(self._worker(instance)): self._key(instance) for instance in self.addresses}
        for instance in list(self.addresses):
            self.join(instance)

    # ---- members ----

    def join(self, instance: int) -> None:
        """The worker registers."""
        worker = self._worker(instance)
        key = self._keys[id(worker)] = self._key(instance)
        planner = worker.planner
        role = (
            Role.PREFILL
            if isinstance(worker, PrefillWorker)
            else Role.UNIFIED
            if isinstance(worker, UnifiedWorker)
            else Role.DECODE
        )
        tokens = (planner.kv_manager.pages.num_pages - 1) * planner.kv_manager.page_size
        config = self.runner.config
        register = Register(
            self.addresses[instance],
            role,
            1,
            "host",
            planner.layout,
            self.runner.fingerprint(),
            config.vocab_size,
            config.context_length,
            planner.kv_manager.rows.num_rows - 1,
            tokens,
            worker.stats(),
            "" if role is Role.UNIFIED else "zmq",
        )
        self.say(key, register)

    def kill(self, worker: Worker, loss: Loss = "gone") -> None:
        """The process ends here; what it has not sent is lost. The gateway notices in the way of `loss`."""
        key = self._keys[id(worker)]
        for pool in (self.prefills, self.decodes):
            pool.pop(key.instance, None)
        if isinstance(worker, UnifiedWorker):
            self.unifieds.remove(worker)
        self.executor(worker).close()
        worker.outbox.gateway.clear()
        del self.addresses[key.instance]
        if loss == "leaving":
            self._silent.add(key.identity)
            self.say(key, Left(key.worker_id, key.instance))
        elif loss == "gone":
            self.control.look()
        else:
            self._silent.add(key.identity)
            self.wait(GatewaySettings.silence_limit_s + 0.1)
        assert self.control.membership.find(key) is None, "the loss is known"

    def named(self, worker_id: str) -> Worker:
        """The worker of this name that lives."""
        (found,) = (each for each in self.workers if self._keys[id(each)].worker_id == worker_id)
        return found

    def wait(self, seconds: float) -> None:
        """Time passes; whoever lives is heard, whoever is not is missed."""
        while seconds > 0:
            step = min(seconds, 0.5)
            seconds -= step
            self.clock.advance(step)
            for worker in self.workers:
                key = self._keys[id(worker)]
                self.say(key, Heartbeat(key.worker_id, key.instance, worker.stats()))
            self.control.look()

    def say(self, key: WorkerKey, message: ToGateway) -> None:
        """The gateway hears `message` from this worker."""
        self.control._on_raw(key.identity, self._ends.say(key.identity, message))

    # ---- requests ----

    def ask(self, name: str, prompt: Sequence[int], sampling: SamplingParams, n: int = 1) -> Client:
        """A client asks."""
        client = self.clients[name] = Client(n)
        self.control.dispatch.assign(name, Prompt(tuple(prompt), sampling, n), client)
        return client

    def finish(self) -> None:
        """Runs until every client has an end and nothing is left anywhere."""
        self.run(lambda: all(client.is_done for client in self.clients.values()) and self.at_rest())
        self.check()
        assert self.control.dispatch.loads == {} and len(self.control.dispatch.requests) == 0
        assert self.control.dispatch.requests.num_choices == 0

    @property
    def num_retries(self) -> int:
        """Attempts after the first, of all requests."""
        return sum(self.control.dispatch.retries.counts.values())

    # ---- the network ----

    def turn(self) -> bool:
        """As in Cluster, but workers may die on the way."""
        progressed = False
        for worker in self.workers:
            if self._is_alive(worker):
                progressed |= worker.turn()
                self.watch()
            if self._is_alive(worker):
                self._deliver(worker)
                self.watch()
        return progressed

    def _deliver(self, worker: Worker) -> None:
        messages = list(worker.outbox.gateway)
        worker.outbox.gateway.clear()
        for message in messages:
            self.say(self._keys[id(worker)], message)
        super()._deliver(worker)

    def _take(self, identity: bytes, message: ToWorker | None) -> bool:
        instance = int(identity.rpartition(b"#")[2])
        worker = self._find(instance)
        if worker is None:
            return identity in self._silent
        if isinstance(message, Assign):
            self.assigns.append((self._key(instance).worker_id, message))
        if message is not None:
            worker.on_gateway(message)
        return True

    def _is_alive(self, worker: Worker) -> bool:
        return any(worker is each for each in self.workers)

    def _key(self, instance: int) -> WorkerKey:
        return WorkerKey(self.addresses[instance].worker_id, instance)

    def _find(self, instance: int) -> Worker | None:
        found: Worker | None = self.prefills.get(instance) or self.decodes.get(instance)
        if found is None and instance in self.addresses:
            name = self.addresses[instance].worker_id
            found = next((each for each in self.unifieds if each._phases._worker_id == name), None)
        return found

    def _worker(self, instance: int) -> Worker:
        worker = self._find(instance)
        assert worker is not None
        return worker
