"""A TCP proxy between the workers' sockets. It cuts connections at a byte, and alters, repeats or holds back messages.

    worker --connects--> Gate (one for each address that workers dial) --Flow--> the worker that listens there

It runs on one thread of its own. Tests may call it from any other thread. faults.py has the faults; deployment.py makes
the workers dial a gate.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.proxy.zmtp import Parts, ZmtpReader, to_bytes

T = TypeVar("T")
READ_BYTES = 256 * 1024
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing throws away what is queued, and says so


class Way(StrEnum):
    """A direction, seen from who dials."""

    THERE = "there"
    BACK = "back"


Rewrite = Callable[[Parts], Parts]
Tamper = Callable[[Parts], Iterable[Parts]]  # what is passed on in place of one message


def unchanged(message: Parts) -> Iterable[Parts]:
    """No fault."""
    return (message,)


@dataclass
class Cut:
    """Of the next connection: it ends when `at` bytes of one direction were passed on, as if its peer had closed it, or
    with a reset."""

    way: Way
    at: int
    with_reset: bool
    is_done: bool = False


class Flow:
    """One connection through a gate."""

    def __init__(self, gate: "Gate", cut: Cut | None) -> None:
        self.gate = gate
        self.cut = cut
        self.num_bytes = {Way.THERE: 0, Way.BACK: 0}  # passed on
        self._is_ended = False
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: dict[Way, asyncio.StreamWriter] = {}

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side ends."""
        self._writers[Way.BACK] = writer
        try:
            there = await asyncio.open_connection(*self.gate.target, limit=READ_BYTES)
            self._writers[Way.THERE] = there[1]
            if self._is_ended:  # while it was dialling
                there[1].close()
                return
            pumps = (self._pump(reader, Way.THERE), self._pump(there[0], Way.BACK))
            self._tasks = [asyncio.create_task(pump) for pump in pumps]
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # nobody listens there any more: who dialled is cut off, too
        finally:
            self.end(with_reset=False)

    async def inject(self, way: Way, message: Parts) -> None:
        """A message more, after those that were passed on."""
        await self._pass_on(way, to_bytes(message))

    def end(self, with_reset: bool) -> None:
        """Both sides see a reset, or what was passed on and then an end."""
        if self._is_ended:
            return
        self._is_ended = True
        for task in self._tasks:
            task.cancel()
        for writer in self._writers.values():
            raw = writer.get_extra_info("socket")
            if with_reset and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
            else:
                writer.close()

    async def _pump(self, reader: asyncio.StreamReader, way: Way) -> None:
        zmtp = ZmtpReader()
        with contextlib.suppress(ConnectionError):
            while raw := await reader.read(READ_BYTES):
                for piece in zmtp.feed(raw):
                    if isinstance(piece, bytes):
                        await self._pass_on(way, piece)
                        continue
                    self.gate.num_messages[way] += 1
                    said = self.gate.rewrite(piece) if way is Way.THERE else piece
                    for message in self.gate.tampers[way](said):
                        await self._pass_on(way, to_bytes(message))

    async def _pass_on(self, way: Way, raw: bytes) -> None:
        writer, cut = self._writers[way], self.cut
        is_cut = cut is not None and cut.way is way and self.num_bytes[way] + len(raw) > cut.at
        if cut is not None and is_cut:
            raw = raw[: cut.at - self.num_bytes[way]]
            writer.transport.set_write_buffer_limits(0)  # the kernel has all of it before a reset
        self.num_bytes[way] += len(raw)
        writer.write(raw)
        await writer.drain()
        if cut is not None and is_cut:
            self.cut, cut.is_done = None, True
            self.end(cut.with_reset)


@dataclass(eq=False)
class Gate:
    """An address that workers dial in place of `target`. `name` is like "data decode-0"."""

    name: str
    instance: int
    target: tuple[str, int]
    rewrite: Rewrite
    endpoint: str = ""
    tampers: dict[Way, Tamper] = field(default_factory=lambda: {Way.THERE: unchanged, Way.BACK: unchanged})
    num_connections: int = 0
    num_messages: dict[Way, int] = field(default_factory=lambda: {Way.THERE: 0, Way.BACK: 0})
    flows: list[Flow] = field(default_factory=list)
    next_cut: Cut | None = None
    server: asyncio.Server | None = None


class Proxy:
    """Gates by the endpoint that they stand before. Close it."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def gate(self, name: str) -> Gate:
        """The newest of that name: a worker that was started again has a new one."""
        return [gate for gate in self._gates.values() if gate.name == name][-1]

    def before(self, endpoint: str, name: str, instance: int, rewrite: Rewrite = lambda message: message) -> str:
        """What to dial in place of `endpoint`; a new gate, unless there is one. What is said there goes through
        `rewrite`, and then through what tampers."""
        return self._call(self._before(Gate(name, instance, _address(endpoint), rewrite), endpoint))

    def known(self, endpoint: str) -> str:
        """What to dial in place of `endpoint`, which has a gate. May be called by `rewrite`."""
        return self._gates[endpoint].endpoint

    def tamper(self, gate: Gate, way: Way, tamper: Tamper) -> None:
        """Messages pass through `tamper` from now on."""
        self._call(_now(lambda: gate.tampers.update({way: tamper})))

    def cut_next(self, gate: Gate, cut: Cut) -> Cut:
        """Ends the connections that there are, and the next one as `cut` says."""

        def begin() -> None:
            gate.next_cut = cut
            self._end_flows(gate)

        self._call(_now(begin))
        return cut

    def cut(self, gate: Gate) -> int:
        """Ends the connections that there are; how many."""
        return self._call(_now(lambda: self._end_flows(gate)))

    def inject(self, gate: Gate, way: Way, messages: Iterable[Parts]) -> int:
        """Messages that were kept back, by the newest connection; how many."""
        return self._call(self._inject(gate, way, list(messages)))

    def close(self) -> None:
        """Ends every connection, and the thread."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(120)

    async def _before(self, gate: "Gate", endpoint: str) -> str:
        if (known := self._gates.get(endpoint)) is not None and known.instance == gate.instance:
            return known.endpoint

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            flow = Flow(gate, gate.next_cut)
            gate.next_cut = None
            gate.num_connections += 1
            gate.flows.append(flow)
            try:
                await flow.run(reader, writer)
            finally:
                gate.flows.remove(flow)

        gate.server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=READ_BYTES)
        gate.endpoint = "tcp://{}:{}".format(*gate.server.sockets[0].getsockname()[:2])
        self._gates.pop(endpoint, None)
        self._gates[endpoint] = gate
        return gate.endpoint

    def _end_flows(self, gate: Gate) -> int:
        flows = list(gate.flows)
        for flow in flows:
            flow.end(with_reset=True)
        return len(flows)

    async def _inject(self, gate: Gate, way: Way, messages: list[Parts]) -> int:
        for message in messages:
            await gate.flows[-1].inject(way, message)
        return len(messages)

    async def _close(self) -> None:
        for gate in self._gates.values():
            assert gate.server is not None
            gate.server.close()
            self._end_flows(gate)
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(rest, timeout=5) if rest else None


async def _now(what: Callable[[], T]) -> T:
    """On the proxy's thread, between two turns."""
    return what()


def _address(endpoint: str) -> tuple[str, int]:
    where = urlsplit(endpoint)
    assert where.hostname and where.port, endpoint
    return where.hostname, where.port
