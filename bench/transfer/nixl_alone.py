"""NIXL alone with the same blocks: one read of all of them from another process into place, and one checksum pass."""

import xxhash

from bench.transfer.blocks import Blocks, HostPages
from protocol.errors import BatonError
from runtime.clock import MonotonicClock
from transfer.backends.nixl.agent import Agent, Region, address_of
from transfer.backends.nixl.backend import regions_of


def regions(blocks: Blocks, seed: int, base: int) -> list[Region]:
    """Prefill's pages of the prompt, or decode's if they are alike, in memory that begins at `base`."""
    size, in_layer = blocks.sent.layer(0).page_bytes, 1 + blocks.sent.num_pages(blocks.num_tokens)
    return [
        Region(base + (layer * in_layer + page) * size, size)
        for layer in range(blocks.sent.num_layers)
        for page in blocks.pages(blocks.sent, seed)
    ]


class NixlExportEnd:
    """Lets the other end read its pages."""

    def __init__(self, memory: HostPages, blocks: Blocks) -> None:
        self._agent = Agent(regions_of(memory))
        self.address = f"{self._agent.export.hex()} {address_of(memory.bytes)}"

    def meet(self, address: str) -> None:
        """Does nothing: the other end has all it needs."""

    def move(self, check: bool) -> dict[str, float]:
        """Does nothing: NIXL's thread serves the read."""
        return {}

    def close(self) -> None:
        """Ends the thread."""
        self._agent.close()


class NixlReadEnd:
    """Reads the other end's pages."""

    def __init__(self, memory: HostPages, blocks: Blocks) -> None:
        self.address = ""
        self._memory = memory
        self._blocks = blocks
        self._agent = Agent(regions_of(memory))
        self._peer = ""
        self._sources: list[Region] = []
        self._into: list[Region] = []

    def meet(self, address: str) -> None:
        """Takes the other end's export."""
        export, base = address.split()
        self._peer = self._agent.meet(bytes.fromhex(export))
        self._sources = regions(self._blocks, 1, int(base))
        ours = address_of(self._memory.bytes)
        if self._blocks.landed == self._blocks.sent:
            self._into = regions(self._blocks, 2, ours)
        else:
            size = self._blocks.sent.layer(0).page_bytes
            self._into = [Region(ours + number * size, size) for number in range(len(self._sources))]

    def move(self, check: bool) -> dict[str, float]:
        """Reads once, then checksums its own memory."""
        base, digest, clock = address_of(self._memory.bytes), xxhash.xxh3_64(), MonotonicClock()
        start = clock.now()
        read = self._agent.read(self._peer, self._into, self._sources, b"read")
        while not read.is_over:
            pass  # this process has its own core
        if read.failure:
            raise BatonError(f"NIXL has not read: {read.failure}")
        for region in self._into if check else ():
            digest.update(self._memory.bytes[region.address - base : region.address - base + region.num_bytes])
        return {"start": start, "end": clock.now()}

    def close(self) -> None:
        """Ends the thread."""
        self._agent.close()
