"""The KV that the transfer benchmark moves: a prompt in pages of a given size, consecutive in memory or scattered."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import xxhash

from protocol.kv_layout import KvLayout
from runtime.shared_memory import SharedMemory

SMALL_MODEL = KvLayout.uniform(
    num_layers=8, num_kv_heads=4, head_dim=64, page_size=16, dtype="bfloat16"
)  # 29M parameters


@dataclass(frozen=True)
class Blocks:
    """`num_tokens` of KV. Prefill's pages have the layout `sent`, decode's have `page_size` tokens."""

    sent: KvLayout
    num_tokens: int
    scattered: bool
    page_size: int = 0  # 0: as prefill's

    @property
    def landed(self) -> KvLayout:
        """The layout of decode's memory."""
        return replace(self.sent, page_size=self.page_size or self.sent.page_size)

    @property
    def num_bytes(self) -> int:
        """Bytes of K and V of all tokens in all layers."""
        return self.num_tokens * self.sent.all_page_bytes // self.sent.page_size

    def pages(self, layout: KvLayout, seed: int) -> list[int]:
        """The pages of one side, in the order of the prompt."""
        pages = list(range(1, 1 + layout.num_pages(self.num_tokens)))
        if self.scattered:
            random.Random(seed).shuffle(pages)
        return pages


def equal_blocks(count: int, kib: int) -> Blocks:
    """`count` blocks of `kib` KiB in one layer, as other libraries are measured."""
    one = KvLayout.uniform(1, 4, 64, 1, "bfloat16")
    tokens = kib * 1024 // one.all_page_bytes
    return Blocks(replace(one, page_size=tokens), count * tokens, scattered=True)


BLOCKS = {
    "8192 tokens": Blocks(SMALL_MODEL, 8192, scattered=False),
    "8192 tokens, scattered": Blocks(SMALL_MODEL, 8192, scattered=True),
    "64 x 16 KiB": equal_blocks(64, 16),
    "1024 x 16 KiB": equal_blocks(1024, 16),
    "256 x 1 MiB": equal_blocks(256, 1024),
    "4096 tokens, pages of 16 to 1": Blocks(SMALL_MODEL, 4096, scattered=True, page_size=1),
}


class HostPages:
    """A PageMemory that other processes may map, like a worker's on a CPU."""

    def __init__(self, layout: KvLayout, num_pages: int) -> None:
        self.layout = layout
        self.num_pages = num_pages
        self._memory = SharedMemory(layout.pool_bytes(num_pages))
        self.bytes = memoryview(self._memory.mapping)
        self._array = np.frombuffer(self._memory.mapping, np.uint8)
        self._array[:] = 0  # touches every page, so that the memory is really allocated

    @property
    def shared_fd(self) -> int:
        """See SharedPages."""
        return self._memory.fd

    def new_seat(self) -> int:
        """See Seated."""
        return self._memory.new_seat()

    def fill(self, seed: int) -> None:
        """Writes random bytes."""
        self._array[:] = np.frombuffer(np.random.default_rng(seed).bytes(len(self._array)), np.uint8)

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        """See PageMemory."""
        return self.bytes[self.layout.span(self.num_pages, layer, page_start, num_pages)]

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """See PageMemory."""
        return self.page_bytes_view(layer, 0, int(pages.max()) + 1)

    def digest(self, pages: list[int], num_tokens: int) -> int:
        """The digest of K and V of a prompt, whichever pages hold it."""
        digest = xxhash.xxh3_64()
        for at in range(self.layout.num_layers):
            layer, span = self.layout.layer(at), self.layout.span(self.num_pages, at, 0, self.num_pages)
            whole = self._array[span].reshape(self.num_pages, 2, layer.page_size, layer.token_bytes)
            for half in (0, 1):
                rows = whole[pages, half].reshape(-1, layer.token_bytes)[:num_tokens]
                digest.update(np.ascontiguousarray(rows).data)
        return digest.intdigest()

    def pieces(self, num_bytes: int, size: int) -> Iterator[memoryview]:
        """The first `num_bytes` after the padding page of layer 0, in pieces of `size`."""
        start = self.layout.layer(0).page_bytes
        for at in range(start, start + num_bytes, size):
            yield self.bytes[at : min(at + size, start + num_bytes)]
