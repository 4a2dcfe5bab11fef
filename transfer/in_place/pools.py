"""Decode workers' memory in which a prefill worker writes KV itself: mapped by the best way that works."""

from collections.abc import Callable, Mapping
from typing import Protocol

from protocol.errors import WireError
from protocol.kv_layout import KvLayout
from runtime.log import get_log
from transfer.in_place.device_pools import DevicePool
from transfer.memory import PageMemory
from transfer.offers import PoolOffer

log = get_log("transfer")


class MappedMemory(PageMemory, Protocol):
    """A peer's pages in host memory."""

    @property
    def num_pages(self) -> int:
        """Pages of each layer, with the padding page."""
        ...

    def close(self) -> None:
        """Unmaps it, then frees the seat."""
        ...


Pool = MappedMemory | DevicePool
Way = Callable[[KvLayout, PoolOffer], Pool]  # maps what a decode worker offers. WireError names why it cannot
ON_DEVICE, IN_PLACE = "KV is not written on the device", "KV is not written in place"  # log lines of the two ways


class Pools:
    """The mapped memory of decode workers, by instance."""

    def __init__(self, ways: Mapping[str, Way] | None = None, required: str = "") -> None:
        """`ways`: the best first, each with the log line for its failure; by default nothing is mapped. `required`: the
        transfer backend that has only one way and needs it."""
        self._ways = ways or {}
        self._required = required
        self._pools: dict[int, Pool] = {}

    def attach(self, instance: int, layout: KvLayout, offer: PoolOffer | None) -> bool:
        """Maps what a decode worker offers. If it cannot: False, or WireError if it is required."""
        self.drop(instance)
        for line, mapped in self._ways.items():
            try:
                if offer is None:
                    raise WireError("decode offers no KV memory to write in")
                self._pools[instance] = mapped(layout, offer)
            except WireError as error:
                if self._required:
                    raise WireError(f"transfer_backend is {self._required}, but {error.message}") from error
                log.info(line, instance=instance, why=error.message)
            else:
                return True
        return False

    def get(self, instance: int) -> Pool | None:
        """The memory of a decode worker, if it is mapped."""
        return self._pools.get(instance)

    def drop(self, instance: int) -> None:
        """Unmaps one worker's memory. Idempotent."""
        if (pool := self._pools.pop(instance, None)) is not None:
            pool.close()

    def close(self) -> None:
        """Unmaps everything. Idempotent."""
        for instance in list(self._pools):
            self.drop(instance)
