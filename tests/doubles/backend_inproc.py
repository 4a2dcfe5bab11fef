"""Senders and receivers of one process: frames queue up and land when the receiver polls. Deterministic, for tests.

A frame in the queue is still a view of its source pages, as on a real wire. So a test sees a page that was given back
too early. A fault rule sees every frame and decides what the network does with it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Protocol

from protocol.errors import WireError
from testkit.device_on_host import LocalIpc
from transfer.in_place.device_pools import AtDevice, Copies, DevicePages, DevicePool, DeviceReader
from transfer.in_place.pools import IN_PLACE, ON_DEVICE, MappedPool, Pools
from transfer.in_place.writers import PoolOwner, SeatFile, Writers
from transfer.interfaces import Part, Pollable, SharedPages
from transfer.landing.frame_receiver import FrameReceiver
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import WINDOW_BYTES

SCHEME = "inproc-network:"


class Transit:
    """Whether the network still holds a frame's parts."""

    def __init__(self) -> None:
        self.done = False


@dataclass(frozen=True)
class Packet:
    """A frame under way: header, then payload. It arrives after its receiver has found nothing `late` times."""

    parts: tuple[memoryview, ...]
    late: int = 0
    transit: Transit = field(default_factory=Transit, compare=False)

    def copy(self) -> "Packet":
        """The same bytes, apart from the source's memory."""
        return Packet(tuple(memoryview(bytes(part)) for part in self.parts), self.late)

    def delayed(self, polls: int) -> "Packet":
        """The same frame, later."""
        return replace(self, late=self.late + polls)

    def corrupted(self, offset: int, flip: int = 1) -> "Packet":
        """A copy with the bits of `flip` turned in the byte at `offset`, counted over header and payload."""
        sizes = [len(part) for part in self.parts]
        joined = bytearray(b"".join(self.parts))
        joined[offset] ^= flip
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        whole = memoryview(bytes(joined))
        return Packet(tuple(whole[end - size : end] for end, size in zip(ends, sizes, strict=True)), self.late)


class Pages(SharedPages, DevicePages, Protocol):
    """KV pages that may be written by whatever means."""


Fault = Callable[[Packet], Iterable[Packet]]  # [] drops, [packet, packet.copy()] duplicates, ...


class InprocNetwork:
    """The wires between the workers of one process."""

    def __init__(
        self,
        fault: Fault | None = None,
        in_place: bool = False,
        copies: Copies | None = None,
        is_ordered: bool = False,
        num_on_device: float = inf,
    ) -> None:
        """`in_place`: KV is written into shared memory and only headers travel, as with the shm backend. `copies`: they
        write it where the model computes, as with the cuda_ipc backend, to the first `num_on_device` receivers.
        `is_ordered`: the fault rule delays nothing."""
        self.fault = fault
        self.is_ordered = is_ordered
        self._in_place = in_place
        self._copies = copies
        self._num_on_device = num_on_device
        self._ipc = LocalIpc()
        self._queues: dict[str, deque[tuple[int, Packet]]] = {}  # by endpoint: (sender, packet)
        self._num_endpoints = 0

    def sender(self, memory: Pages, instance: int, window: int = WINDOW_BYTES) -> FrameSender:
        """A FrameSender of this network."""
        pools = Pools({IN_PLACE: MappedPool}, required="shm") if self._in_place else None
        if self._copies is not None:
            required = "cuda_ipc" if self._num_on_device == inf else ""
            pools = Pools({ON_DEVICE: partial(DevicePool, AtDevice(memory, self._copies, self._ipc))}, required)
        return FrameSender(memory, instance, _InprocWire(self, instance), window, pools, device_window=window)

    def receiver(self, memory: Pages) -> FrameReceiver:
        """A FrameReceiver of this network."""
        self._num_endpoints += 1
        endpoint = f"{SCHEME}{self._num_endpoints}"
        self._queues[endpoint] = deque()
        writers = Writers(PoolOwner(memory), required="shm") if self._in_place else None
        if self._copies is not None and self._num_endpoints <= self._num_on_device:
            owner = PoolOwner(SeatFile(memory.num_pages), self._ipc.export(memory.device_bytes))
            writers, reader = Writers(owner, required="cuda_ipc"), DeviceReader(memory, self._copies)
            return FrameReceiver(memory, _InprocArrivals(self, endpoint), writers, reader=reader)
        return FrameReceiver(memory, _InprocArrivals(self, endpoint), writers)

    def carry(self, sender: int, endpoint: str, packet: Packet) -> None:
        """Queues what the fault rule makes of a frame; a closed endpoint gets nothing."""
        made = [packet] if self.fault is None else list(self.fault(packet))
        queue = self._queues.get(endpoint)
        if queue is not None:
            queue.extend((sender, each) for each in made)
        if queue is None or all(each.transit is not packet.transit for each in made):
            packet.transit.done = True

    def take(self, endpoint: str) -> Packet | None:
        """The next packet that is not late; when there is none, those that are late come closer."""
        queue = self._queues.get(endpoint, deque())
        for index, (_, packet) in enumerate(queue):
            if packet.late <= 0:
                del queue[index]
                return packet
        for index, (sender, packet) in enumerate(queue):
            queue[index] = (sender, packet.delayed(-1))
        return None

    def forget(self, sender: int, endpoint: str) -> None:
        """Drops what `sender` has under way to `endpoint`."""
        queue = self._queues.get(endpoint, deque())
        kept = [entry for entry in queue if entry[0] != sender]
        for origin, packet in queue:
            if origin == sender:
                packet.transit.done = True
        queue.clear()
        queue.extend(kept)

    def unbind(self, endpoint: str) -> None:
        """Drops an endpoint and what is under way to it."""
        for _, packet in self._queues.pop(endpoint, ()):
            packet.transit.done = True


class _InprocWire:
    def __init__(self, network: InprocNetwork, instance: int) -> None:
        self._network = network
        self._instance = instance
        self._endpoints: dict[int, str] = {}

    def connect(self, instance: int, endpoint: str) -> None:
        if not endpoint.startswith(SCHEME):
            raise WireError(f"data address {endpoint!r}, expected one that begins with {SCHEME}")
        self._endpoints[instance] = endpoint

    def send(self, instance: int, parts: Sequence[Part]) -> Transit:
        packet = Packet(tuple(memoryview(part) for part in parts))
        self._network.carry(self._instance, self._endpoints[instance], packet)
        return packet.transit

    def broken(self) -> Sequence[int]:
        return ()

    def disconnect(self, instance: int) -> None:
        self._network.forget(self._instance, self._endpoints.pop(instance))

    def close(self) -> None:
        for instance in list(self._endpoints):
            self.disconnect(instance)


class _InprocArrivals:
    backend = "inproc"

    def __init__(self, network: InprocNetwork, endpoint: str) -> None:
        self.address = endpoint
        self.is_ordered = network.is_ordered
        self._network = network

    def receive(self) -> Sequence[memoryview] | None:
        packet = self._network.take(self.address)
        if packet is None:
            return None
        landed = packet.copy()  # read here for the last time
        packet.transit.done = True
        return landed.parts

    def pollables(self) -> list[Pollable]:
        return []

    def meet(self, instance: int, export: bytes) -> None:
        """See interfaces.Arrivals."""

    def lose(self, instance: int) -> None:
        """See interfaces.Arrivals."""

    def close(self) -> None:
        self._network.unbind(self.address)
