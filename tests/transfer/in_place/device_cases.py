"""Frames to move between device memories, for the CPU, the interpreter and a device alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from protocol.kv_layout import LayerLayout
from testkit.device_on_host import HostCopies
from transfer.in_place.device_pools import WORDS, Tiles, tiles_to_write, word_bytes
from transfer.plan import Copy, Shard, moves_of

NUM_LAYERS, NUM_PAGES = 2, 40


@dataclass(frozen=True)
class Case:
    """A prompt of two layers, `scattered` in pages of two sizes."""

    heads: int
    head_dim: int
    dtype: str
    page_sizes: tuple[int, int]
    num_tokens: int
    scattered: bool

    def layout(self, side: int) -> LayerLayout:
        return LayerLayout(self.heads, self.head_dim, self.page_sizes[side], self.dtype)

    def pages(self, side: int) -> list[int]:
        count = self.layout(side).num_pages(self.num_tokens)
        return [1 + (7 * index) % (NUM_PAGES - 1) if self.scattered else 2 + index for index in range(count)]

    def tiles(self) -> Tiles:
        here, there = self.layout(0), self.layout(1)
        moves = moves_of(
            Shard(here, self.pages(0)), Shard(there, self.pages(1)), range(self.heads), range(self.num_tokens)
        )
        return tiles_to_write(Copy(moves, here.page_bytes, there.page_bytes), here, there)

    def memory(self, side: int) -> Tensor:
        """The words of all layers, random. One side has more pages."""
        rng = torch.Generator().manual_seed(side + 1)
        num_bytes = (NUM_PAGES + side) * self.layout(side).page_bytes
        raw = torch.randint(0, 256, (NUM_LAYERS, num_bytes), dtype=torch.uint8, generator=rng)
        return raw.view(WORDS[word_bytes(self.layout(side))])

    def pool_before(self) -> list[int]:
        return list(self.memory(1).flatten().tolist())

    def moved_on_cpu(self) -> tuple[list[int], Sequence[int]]:
        """The target's words afterwards, and the checksums."""
        target = self.memory(1)
        moved = HostCopies().begin(self.memory(0), target, self.tiles())
        return list(target.flatten().tolist()), moved.totals


CASES = [
    Case(2, 8, "float32", (4, 4), 16, False),
    Case(2, 8, "float32", (4, 4), 15, True),
    Case(2, 64, "bfloat16", (16, 16), 200, True),
    Case(2, 8, "bfloat16", (8, 2), 21, True),
    Case(1, 8, "float16", (1, 4), 9, True),
    Case(3, 6, "bfloat16", (4, 4), 13, True),  # words of 4 bytes
    Case(1, 5, "bfloat16", (2, 4), 7, False),  # of 2
    Case(1, 4, "float32", (4, 4), 1, False),
]


def moved_by_kernel(case: Case, device: str, writes: bool = True) -> tuple[list[int], Sequence[int]]:
    """As moved_on_cpu, by the kernel."""
    from transfer.in_place.device_moves_triton import NUM_SUMS, launch  # noqa: PLC0415 - an optional package

    tiles = case.tiles()
    source, target = case.memory(0).to(device), case.memory(1).to(device)
    table = torch.from_numpy(np.stack([tiles.sources_U, tiles.targets_U])).to(device)
    sums = torch.zeros(NUM_LAYERS, NUM_SUMS, dtype=torch.int64, device=device)
    launch(source, target if writes else None, table, tiles.num_words, sums)
    return list(target.flatten().tolist()), tuple(sum(shares) % 2**64 for shares in sums.tolist())
