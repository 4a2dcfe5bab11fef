"""Decode's pages as prefill workers map and write them: seats, and the rules of each write.

A seat is free again when its holder lets go of it or the holder's process is gone, and not before. A writer must hold a
seat. It writes only into pages in quarantine, or pages reserved for one of its own jobs; never into one that the cache
keeps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from model.paged_kv import PagedKv
from protocol.errors import WireError
from protocol.kv_layout import KvLayout
from scheduler.planning.kv_pages import PageAllocator, PageState
from tests.explore_handoff.network import Host
from transfer.in_place.pools import Way
from transfer.in_place.writers import PoolOwner
from transfer.offers import PoolOffer

HOST = "host"


@dataclass(eq=False)
class SharedPool(PoolOwner):
    """`owner_of` is the prefill instance for whose job a page is reserved, if it is."""

    owner: Host
    process: int  # the instance, as if it were the pid
    kv: PagedKv
    pages: PageAllocator
    owner_of: Callable[[int], int | None]
    seats: dict[int, Host] = field(default_factory=dict)  # who has taken which
    _num_seats: int = 0

    def offer(self) -> PoolOffer:
        """See PoolOwner."""
        self._num_seats += 1
        return PoolOffer(HOST, self.process, 1, self.kv.num_pages, self._num_seats)

    def is_taken(self, seat: int) -> bool:
        """See PoolOwner."""
        return seat in self.seats and self.seats[seat].alive


@dataclass(eq=False)
class MappedPool:
    """See transfer.in_place.pools.MappedMemory."""

    pool: SharedPool
    writer: Host
    instance: int
    seat: int

    @property
    def layout(self) -> KvLayout:
        """See PageMemory."""
        return self.pool.kv.layout

    @property
    def num_pages(self) -> int:
        """See MappedMemory."""
        return self.pool.kv.num_pages

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """See PageMemory."""
        self._check(pages.tolist())
        return self.pool.kv.window(layer, pages)

    def close(self) -> None:
        """See MappedMemory."""
        del self.pool.seats[self.seat]

    def _check(self, pages: Sequence[int]) -> None:
        if self.pool.owner.alive:  # else nobody will ever read what is written
            assert self.pool.seats.get(self.seat) is self.writer, "somebody writes without a seat"
            for page in pages:
                state = self.pool.pages._state[page]
                assert not self.pool.pages._is_kept[page], f"page {page} is written, and the cache keeps it"
                assert state in (PageState.RESERVED, PageState.QUARANTINED), (
                    f"page {page} is written, it is {state.name}"
                )
                if state is PageState.RESERVED:
                    owner = self.pool.owner_of(page)
                    assert owner == self.instance, f"page {page} is written, it is reserved for instance {owner}"


def way_into(shared: dict[int, SharedPool], writer: Host, instance: int) -> Way:
    """How one prefill worker maps the pools of its world, which are `shared`."""

    def mapped(layout: KvLayout, offer: PoolOffer) -> MappedPool:
        pool = shared.get(offer.pid)
        if pool is None or not pool.owner.alive:
            raise WireError("this memory is not lent")
        pool.seats[offer.seat] = writer
        return MappedPool(pool, writer, instance, offer.seat)

    return mapped
