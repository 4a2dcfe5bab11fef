"""KV pages in device memory that another process writes: decode offers them, prefill maps and writes them.

    decode   offers a handle of its device memory, besides the seat and its host memory, if it has any
    prefill  takes the seat, maps the device memory, else the host's, and reports which, with its process id
    decode   treats the pages as writable until the seat is free and the process is not ending

The last condition is not needed for host memory: of a process that is killed, the kernel frees the seat some moments
before it takes the device away.
"""

import os
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from protocol.errors import WireError
from protocol.kv_layout import KvLayout
from protocol.messages_handoff import DeviceHandle, PoolOffer
from runtime.log import get_log
from runtime.shared_memory import SharedMemory, host_identity, open_shared, take_seat
from transfer.in_place.device_moves import WORDS, Copies, Units, units_to_read, units_to_write, word_bytes
from transfer.in_place.moving import Moving
from transfer.in_place.pools import MappedMemory, Pools
from transfer.in_place.writers import Seats
from transfer.plan.copying import Copy, Runs

SEATS_BYTES = 4096  # size of a file that holds only seats; they are locks and use none of it
log = get_log("transfer")


class DevicePages(Protocol):
    """KV pages in the memory of a device."""

    @property
    def layout(self) -> KvLayout:
        """Their layout."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""
        ...

    @property
    def device_bytes(self) -> Tensor:
        """All bytes, contiguous: (num_layers, num_pages * page_bytes), uint8."""
        ...


class Opened(Protocol):
    """Memory of another process, mapped here."""

    @property
    def memory(self) -> Tensor:
        """Its bytes, uint8."""
        ...

    def close(self) -> None:
        """Unmaps it."""
        ...


class Ipc(Protocol):
    """Shares device memory between processes. See cuda_driver.CudaIpc."""

    def export(self, memory: Tensor) -> DeviceHandle:
        """The handle by which another process maps it. WireError names why there is none."""
        ...

    def open(self, offered: DeviceHandle) -> Opened:
        """Maps what another process exports. WireError names why it cannot."""
        ...


@dataclass(frozen=True)
class AtDevice:
    """A worker's own device memory, and the means to move KV there."""

    pages: DevicePages
    copies: Copies
    ipc: Ipc

    def export(self) -> DeviceHandle:
        """The handle by which others map it. WireError names why there is none."""
        return self.ipc.export(self.pages.device_bytes)


def layers_of(memory: Tensor, layout: KvLayout) -> Tensor:
    """The words of each layer, (num_layers, words)."""
    return memory.view(layout.num_layers, -1).view(WORDS[word_bytes(layout)])


class SeatFile:
    """Seats without pages, for a decode worker that has no KV in host memory."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._memory = SharedMemory(SEATS_BYTES)

    @property
    def shared_fd(self) -> int:
        """The file."""
        return self._memory.fd


class DeviceOwner:
    """The decode side: the offers of `seats`, with device memory added."""

    def __init__(self, seats: Seats, handle: DeviceHandle) -> None:
        self._seats = seats
        self._handle = handle

    def offer(self) -> PoolOffer:
        """See Seats."""
        return replace(self._seats.offer(), device=self._handle)

    def is_taken(self, seat: int) -> bool:
        """See Seats."""
        return self._seats.is_taken(seat)


class DeviceReader:
    """The decode side: sums what was written into its pages."""

    def __init__(self, memory: DevicePages, copies: Copies) -> None:
        self._layout = memory.layout
        self._words_LW = layers_of(memory.device_bytes, memory.layout)
        self._copies = copies
        self._units: WeakKeyDictionary[Runs, Units] = WeakKeyDictionary()  # one plan serves every layer

    def begin(self, layer: int, written: Runs) -> Moving:
        """Begins to sum what was written."""
        if (units := self._units.get(written)) is None:
            units = self._units[written] = units_to_read(written, self._layout)
        return self._copies.begin(self._words_LW[layer], None, units)


class DevicePool:
    """The prefill side: device pages of another process. Holds the seat until close()."""

    def __init__(self, ours: AtDevice, layout: KvLayout, offer: PoolOffer) -> None:
        """Takes the seat, then maps the memory. WireError names why it cannot."""
        self.layout = layout
        self.num_pages = offer.num_pages
        self._from = ours.pages.layout
        self._copies = ours.copies
        self._units: WeakKeyDictionary[Copy, Units] = WeakKeyDictionary()  # one plan serves every layer

        if offer.device is None:
            raise WireError("decode offers no device memory to write in")
        num_bytes = layout.pool_bytes(offer.num_pages)
        if offer.device.num_bytes != num_bytes:
            raise WireError(f"decode's device memory has {offer.device.num_bytes} bytes, expected {num_bytes}")

        self._fd = _sit(offer)
        try:
            self._opened = ours.ipc.open(offer.device)
        except WireError:
            os.close(self._fd)
            raise

        self._source_LW = layers_of(ours.pages.device_bytes, self._from)
        self._target_LW = layers_of(self._opened.memory, layout)

    def begin(self, layer: int, copy: Copy) -> Moving:
        """Begins to write from our pages into the peer's."""
        if (units := self._units.get(copy)) is None:
            units = self._units[copy] = units_to_write(copy, self._from, self.layout)
        return self._copies.begin(self._source_LW[layer], self._target_LW[layer], units)

    def close(self) -> None:
        """Unmaps the memory, then frees the seat. The caller has made sure that nothing writes any more."""
        del self._target_LW
        self._opened.close()
        os.close(self._fd)


def _sit(offer: PoolOffer) -> int:
    """A descriptor of our own that holds the offered seat."""
    if offer.host != host_identity():
        raise WireError("decode is on another host, or in another container")
    try:
        fd = open_shared(offer.pid, offer.fd)
    except OSError as error:
        raise WireError(f"decode's seats cannot be opened: {error}") from error
    try:
        take_seat(fd, offer.seat)
    except OSError as error:
        os.close(fd)
        raise WireError(f"decode's seat cannot be taken: {error}") from error
    return fd


class DeviceMaps:
    """The mapped memory of decode workers, by instance: on the device, else in host memory. Without `host`, KV must go
    into device memory."""

    def __init__(self, ours: AtDevice, host: Pools | None) -> None:
        self._ours = ours
        self._host = host
        self._pools: dict[int, DevicePool] = {}

    def attach(self, instance: int, layout: KvLayout, offer: PoolOffer | None) -> bool:
        """See Pools."""
        self.drop(instance)
        try:
            if offer is None:
                raise WireError("decode offers no KV memory to write in")
            self._pools[instance] = DevicePool(self._ours, layout, offer)
        except WireError as error:
            if self._host is None:
                raise WireError(f"transfer_backend is cuda_ipc, but {error.message}") from error
            log.info("KV is not written on the device", instance=instance, why=error.message)
            return self._host.attach(instance, layout, offer)
        return True

    def get(self, instance: int) -> MappedMemory | None:
        """See Pools."""
        return None if self._host is None else self._host.get(instance)

    def device(self, instance: int) -> DevicePool | None:
        """The device memory of a decode worker, if it is mapped."""
        return self._pools.get(instance)

    def drop(self, instance: int) -> None:
        """See Pools."""
        if (pool := self._pools.pop(instance, None)) is not None:
            pool.close()
        if self._host is not None:
            self._host.drop(instance)

    def close(self) -> None:
        """See Pools."""
        for instance in list(self._pools):
            self.drop(instance)
        if self._host is not None:
            self._host.close()
