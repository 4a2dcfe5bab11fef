"""The payload of a frame: where its bytes are read, and which of them travel behind the header.

Extents of pages travel as views of page memory, without a copy. A frame of many short extents is gathered first,
because each part has a cost. If the peer's pages can be written in place, they are, and nothing travels but the header.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from transfer.in_place.device_pools import DevicePool
from transfer.in_place.pools import Pool
from transfer.interfaces import PageMemory, Part
from transfer.plan import KvFrame
from transfer.sending.transfer import Frame, SendTransfer

GATHER_BELOW = 64 * 1024  # bytes: runs that are shorter on average are gathered


@dataclass(frozen=True)
class Payload:
    """The payload of one frame. Read `content` to its end before `parts` leave: reading it writes or gathers KV."""

    parts: Sequence[Part]  # travel behind the header
    content: Iterable[Part]  # the bytes that the header counts and sums
    is_shared: bool = False  # `parts` are views of page memory, so the pages must not change while these are read


class Payloads:
    """Reads payloads from `memory`. Extents shorter than `gather_below` bytes on average are gathered; None means
    GATHER_BELOW."""

    def __init__(self, memory: PageMemory, gather_below: int | None = None) -> None:
        self._memory = memory
        self._gather_below = GATHER_BELOW if gather_below is None else gather_below

    def read(self, transfer: SendTransfer, frame: Frame, pool: Pool | None) -> Payload:
        """The payload of a frame that no device moves. `pool`: the peer's memory, if it is mapped."""
        if not isinstance(frame, KvFrame):
            last = [transfer.last_payload(frame)]
            return Payload(last, last)

        if transfer.is_in_place:
            assert pool is not None and not isinstance(pool, DevicePool), "transfers end before the memory is unmapped"
            copy = transfer.copy(frame)
            source = self._memory.window(frame.layer, copy.sources.pages)
            return Payload([], copy.pieces(source, pool.window(frame.layer, copy.targets.pages)))

        runs = transfer.runs(frame)
        window = self._memory.window(frame.layer, runs.pages)
        if len(runs) > 1 and runs.num_bytes < len(runs) * self._gather_below:
            gathered = np.empty(runs.num_bytes, np.uint8).data
            return Payload([gathered], runs.gather(window, gathered))

        views = runs.views(window)
        return Payload(views, views, is_shared=True)
